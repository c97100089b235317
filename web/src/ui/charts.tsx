"use client";
// Lines and bars as SVG: themed by CSS, readable by assistive technology, no library to load.

import { useId, useLayoutEffect, useMemo, useRef, useState, type PointerEvent, type RefObject } from "react";
import { layChart, type Layout } from "./charts.model";

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

/** What stands below a curve: its name. Whoever keeps a place for a chart adds it to the chart's height. */
export const CAPTION_HEIGHT = 24;
// Until a chart has been measured, before it is painted.
const WIDTH_FIRST = 800;

/** Drawn in the pixels that it gets: its words are as large on a phone as on a wall. `bare`: the curve alone. */
export function LineChart({ label, series, marks = [], height = 240, showX, showY, log = false, whole = false, bare = false, from }: { label: string; series: Series[]; marks?: Mark[]; height?: number; showX: (x: number) => string; showY: (y: number) => string; log?: boolean; whole?: boolean; bare?: boolean; from?: number }) {
  const id = useId();
  const box = useRef<SVGSVGElement>(null);
  const width = useWidth(box);
  const [pointer, setPointer] = useState<number | null>(null);
  const scale = useMemo(
    () => layChart({ xs: [...series.flatMap((each) => each.points.map((point) => point.x)), ...marks.map((mark) => mark.x)], ys: series.flatMap((each) => each.points.map((point) => point.y)), width, height, log, whole, bare, from, showX, showY }),
    [series, marks, width, height, log, whole, bare, from, showX, showY],
  );
  const point = (event: PointerEvent) => {
    const edge = box.current?.getBoundingClientRect();
    if (edge) setPointer(scale.unx(event.clientX - edge.left));
  };
  const near = pointer === null ? null : series.map((each) => nearest(each.points, pointer));
  const last = series.map((each) => `${each.name} ${each.points.length ? showY(each.points[each.points.length - 1]?.y ?? 0) : "nothing"}`);
  const told = near?.find((each) => each !== null) ?? null;
  return (
    <figure className="min-w-0">
      <svg ref={box} viewBox={`0 0 ${width} ${height}`} height={height} role="img" aria-label={`${label}. Last: ${last.join(", ")}`} className="block w-full touch-pan-y select-none" onPointerMove={point} onPointerLeave={() => setPointer(null)}>
        <defs>
          {series.map((each, index) => (
            <linearGradient key={each.name} id={`${id}-${index}`} x1="0" x2="0" y1="0" y2="1">
              <stop offset="0" stopColor={each.colour} stopOpacity="0.25" />
              <stop offset="1" stopColor={each.colour} stopOpacity="0" />
            </linearGradient>
          ))}
        </defs>
        {scale.yTicks.map((tick) => (
          <g key={tick.at}>
            <line x1={scale.left} x2={scale.right} y1={scale.y(tick.at)} y2={scale.y(tick.at)} stroke="var(--line)" />
            <text x={scale.left - 8} y={scale.y(tick.at) + 4} textAnchor="end" fontSize="12" fill="var(--soft)" className="figure">
              {tick.words}
            </text>
          </g>
        ))}
        {scale.xTicks.map((tick) => (
          <text key={tick.at} x={scale.x(tick.at)} y={height - 6} textAnchor={tick.anchor} fontSize="12" fill="var(--soft)" className="figure">
            {tick.words}
          </text>
        ))}
        {series.map((each, index) => (
          <g key={each.name}>
            {each.area ? <path d={`${path(each, scale)}L${scale.x(each.points[each.points.length - 1]?.x ?? 0)},${scale.bottom}L${scale.x(each.points[0]?.x ?? 0)},${scale.bottom}Z`} fill={`url(#${id}-${index})`} /> : null}
            <path d={path(each, scale)} fill="none" stroke={each.colour} strokeWidth="2" strokeLinejoin="round" />
          </g>
        ))}
        {marks.map((mark) => (
          <g key={`${mark.x} ${mark.label}`}>
            <line x1={scale.x(mark.x)} x2={scale.x(mark.x)} y1={scale.top} y2={scale.bottom} stroke={mark.colour} strokeDasharray="3 3" />
            <circle cx={scale.x(mark.x)} cy={scale.top} r="4" fill={mark.colour}>
              <title>{mark.label}</title>
            </circle>
          </g>
        ))}
        {told ? <line x1={scale.x(told.x)} x2={scale.x(told.x)} y1={scale.top} y2={scale.bottom} stroke="var(--line-strong)" /> : null}
        {near?.map((each, index) => (each ? <circle key={series[index]?.name} cx={scale.x(each.x)} cy={scale.y(each.y)} r="4" fill={series[index]?.colour} stroke="var(--surface)" strokeWidth="2" /> : null))}
      </svg>
      {bare ? null : <figcaption className="figure flex min-h-6 flex-wrap gap-x-5 text-sm">
        {series.map((each, index) => (
          <span key={each.name} className="inline-flex items-center gap-1.5">
            <span aria-hidden className="h-0.5 w-3" style={{ background: each.colour }} />
            {each.name}
            {near?.[index] ? <strong className="font-medium">{showY(near[index]?.y ?? 0)}</strong> : null}
          </span>
        ))}
        {told ? <span className="text-soft">{showX(told.x)}</span> : null}
      </figcaption>}
    </figure>
  );
}

/** How wide it is, from before it is painted on. */
function useWidth(box: RefObject<Element | null>): number {
  const [width, setWidth] = useState(WIDTH_FIRST);
  useLayoutEffect(() => {
    const target = box.current;
    if (!target) return;
    const measure = () => setWidth(Math.max(1, Math.round(target.getBoundingClientRect().width)));
    measure();
    const watcher = new ResizeObserver(measure);
    watcher.observe(target);
    return () => watcher.disconnect();
  }, [box]);
  return width;
}

function path(series: Series, scale: Layout): string {
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

export function Bars({ label, bars }: { label: string; bars: { name: string; value: number; title: string }[] }) {
  const top = Math.max(0, ...bars.map((bar) => bar.value)) || 1;
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
