"use client";
// Lines and bars as SVG: themed by CSS, readable by assistive technology, no library to load.

import { useId, useMemo, useRef, useState, type PointerEvent } from "react";

export interface Series {
  name: string;
  colour: string;
  points: { x: number; y: number }[];
  /** Steps hold their value until the next point. */
  step?: boolean;
  area?: boolean;
}

export interface Mark {
  x: number;
  label: string;
  colour: string;
}

export const CHART_WIDTH = 800;
const PAD = { left: 52, right: 12, top: 12, bottom: 26 };

export function LineChart({ label, series, marks = [], height = 240, showX, showY, log = false, whole = false, from }: { label: string; series: Series[]; marks?: Mark[]; height?: number; showX: (x: number) => string; showY: (y: number) => string; log?: boolean; whole?: boolean; from?: number }) {
  const id = useId();
  const box = useRef<SVGSVGElement>(null);
  const [pointer, setPointer] = useState<number | null>(null);
  const scale = useMemo(() => makeScale(series, marks, height, log, whole, from), [series, marks, height, log, whole, from]);
  const point = (event: PointerEvent) => {
    const edge = box.current?.getBoundingClientRect();
    if (edge) setPointer(scale.unx(((event.clientX - edge.left) / edge.width) * CHART_WIDTH));
  };
  const near = pointer === null ? null : series.map((each) => nearest(each.points, pointer));
  const last = series.map((each) => `${each.name} ${each.points.length ? showY(each.points[each.points.length - 1]?.y ?? 0) : "nothing"}`);
  const told = near?.find((each) => each !== null) ?? null;
  return (
    <figure className="min-w-0">
      <svg ref={box} viewBox={`0 0 ${CHART_WIDTH} ${height}`} role="img" aria-label={`${label}. Last: ${last.join(", ")}`} className="block h-auto w-full touch-pan-y select-none" onPointerMove={point} onPointerLeave={() => setPointer(null)}>
        <defs>
          {series.map((each, index) => (
            <linearGradient key={each.name} id={`${id}-${index}`} x1="0" x2="0" y1="0" y2="1">
              <stop offset="0" stopColor={each.colour} stopOpacity="0.25" />
              <stop offset="1" stopColor={each.colour} stopOpacity="0" />
            </linearGradient>
          ))}
        </defs>
        {scale.ys.map((y) => (
          <g key={y}>
            <line x1={PAD.left} x2={CHART_WIDTH - PAD.right} y1={scale.y(y)} y2={scale.y(y)} stroke="var(--line)" />
            <text x={PAD.left - 8} y={scale.y(y) + 4} textAnchor="end" fontSize="12" fill="var(--soft)" className="figure">
              {showY(y)}
            </text>
          </g>
        ))}
        {scale.xs.map((x, index) => (
          <text key={x} x={scale.x(x)} y={height - 6} textAnchor={index === 0 ? "start" : index === scale.xs.length - 1 ? "end" : "middle"} fontSize="12" fill="var(--soft)" className="figure">
            {showX(x)}
          </text>
        ))}
        {series.map((each, index) => (
          <g key={each.name}>
            {each.area ? <path d={`${path(each, scale)}L${scale.x(each.points[each.points.length - 1]?.x ?? 0)},${height - PAD.bottom}L${scale.x(each.points[0]?.x ?? 0)},${height - PAD.bottom}Z`} fill={`url(#${id}-${index})`} /> : null}
            <path d={path(each, scale)} fill="none" stroke={each.colour} strokeWidth="2" strokeLinejoin="round" />
          </g>
        ))}
        {marks.map((mark) => (
          <g key={`${mark.x} ${mark.label}`}>
            <line x1={scale.x(mark.x)} x2={scale.x(mark.x)} y1={PAD.top} y2={height - PAD.bottom} stroke={mark.colour} strokeDasharray="3 3" />
            <circle cx={scale.x(mark.x)} cy={PAD.top} r="4" fill={mark.colour}>
              <title>{mark.label}</title>
            </circle>
          </g>
        ))}
        {told ? <line x1={scale.x(told.x)} x2={scale.x(told.x)} y1={PAD.top} y2={height - PAD.bottom} stroke="var(--line-strong)" /> : null}
        {near?.map((each, index) => (each ? <circle key={series[index]?.name} cx={scale.x(each.x)} cy={scale.y(each.y)} r="4" fill={series[index]?.colour} stroke="var(--surface)" strokeWidth="2" /> : null))}
      </svg>
      <figcaption className="figure flex min-h-6 flex-wrap gap-x-5 text-sm">
        {series.map((each, index) => (
          <span key={each.name} className="inline-flex items-center gap-1.5">
            <span aria-hidden className="h-0.5 w-3" style={{ background: each.colour }} />
            {each.name}
            {near?.[index] ? <strong className="font-medium">{showY(near[index]?.y ?? 0)}</strong> : null}
          </span>
        ))}
        {told ? <span className="text-soft">{showX(told.x)}</span> : null}
      </figcaption>
    </figure>
  );
}

interface Scale {
  x: (x: number) => number;
  y: (y: number) => number;
  unx: (px: number) => number;
  xs: number[];
  ys: number[];
}

function makeScale(series: Series[], marks: Mark[], height: number, log: boolean, whole: boolean, from?: number): Scale {
  const xs = [...series.flatMap((each) => each.points.map((point) => point.x)), ...marks.map((mark) => mark.x)];
  const ys = series.flatMap((each) => each.points.map((point) => point.y)).filter((y) => !log || y > 0);
  const [x0, x1] = [least(xs, 0), most(xs, 1)];
  const turn = log ? Math.log10 : (y: number) => y;
  const low = turn(from !== undefined && !log ? Math.min(from, least(ys, 0)) : least(ys, log ? 1 : 0));
  const high = turn(most(ys, log ? 10 : 1));
  const spread = high - low || Math.abs(high) || 1;
  const ticks = log ? [0, 1, 2, 3, 4].map((part) => 10 ** (low + (spread * part) / 4)) : niceTicks(low, low + spread, whole);
  const [bottom, top] = log ? [low, low + spread] : [ticks[0] ?? low, ticks[ticks.length - 1] ?? high];
  const across = CHART_WIDTH - PAD.left - PAD.right;
  const up = height - PAD.top - PAD.bottom;
  const span = x1 - x0 || 1;
  return {
    x: (x) => PAD.left + ((x - x0) / span) * across,
    y: (y) => height - PAD.bottom - ((turn(Math.max(y, log ? 1e-12 : -Infinity)) - bottom) / (top - bottom || 1)) * up,
    unx: (px) => x0 + ((px - PAD.left) / across) * span,
    xs: [0, 1, 2, 3].map((part) => x0 + (span * part) / 3),
    ys: ticks,
  };
}

function niceTicks(low: number, high: number, whole: boolean): number[] {
  const rough = whole ? Math.max(1, (high - low) / 4) : (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((each) => each * power).find((each) => each >= rough) ?? rough;
  const ticks = [];
  for (let tick = Math.floor(low / step) * step; tick < high + step * 0.999; tick += step) ticks.push(Number(tick.toPrecision(10)));
  return ticks;
}

function path(series: Series, scale: Scale): string {
  let text = "";
  let before: number | null = null;
  for (const point of series.points) {
    const x = scale.x(point.x).toFixed(1);
    const y = scale.y(point.y);
    if (before === null) text += `M${x},${y.toFixed(1)}`;
    else if (series.step) text += `L${x},${before.toFixed(1)}L${x},${y.toFixed(1)}`;
    else text += `L${x},${y.toFixed(1)}`;
    before = y;
  }
  return text || "M0,0";
}

function nearest(points: { x: number; y: number }[], x: number): { x: number; y: number } | null {
  let best: { x: number; y: number } | null = null;
  for (const point of points) if (!best || Math.abs(point.x - x) < Math.abs(best.x - x)) best = point;
  return best;
}

// Not Math.min(...): a long curve has more points than a call may have arguments.
function least(values: number[], otherwise: number): number {
  return values.length ? values.reduce((a, b) => (a < b ? a : b)) : otherwise;
}

function most(values: number[], otherwise: number): number {
  return values.length ? values.reduce((a, b) => (a > b ? a : b)) : otherwise;
}

export function Bars({ label, bars }: { label: string; bars: { name: string; value: number; title: string }[] }) {
  const top = most(bars.map((bar) => bar.value), 0) || 1;
  return (
    <div role="img" aria-label={`${label}: ${bars.filter((bar) => bar.value > 0).map((bar) => bar.title).join("; ") || "nothing"}`}>
      <div className="flex h-28 items-end gap-px">
        {bars.map((bar) => (
          <span key={bar.name} title={bar.title} className="min-w-0 flex-1 rounded-t-sm bg-accent" style={{ height: `${Math.max(bar.value > 0 ? 3 : 1, (bar.value / top) * 100)}%`, opacity: bar.value > 0 ? 1 : 0.25 }} />
        ))}
      </div>
      <div className="mt-1 flex justify-between text-sm text-soft">
        <span>{bars[0]?.name}</span>
        <span>{bars[bars.length - 1]?.name}</span>
      </div>
    </div>
  );
}
