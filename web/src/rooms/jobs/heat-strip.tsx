"use client";
// All slices of a job in one strip, up to a hundred thousand of them: drawn from ranges, picked by pointer or arrow keys.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, type KeyboardEvent, type PointerEvent } from "react";
import { getStrip, type Job, type SliceState } from "@/lib/api/gateway";
import { toneOf, type Tone } from "@/lib/states";
import { countOf } from "@/lib/words";
import { Ask, Block } from "@/ui/faces";
import { usePoll } from "@/ui/providers";
import { layStrip, sliceAt } from "./heat-strip.model";

const TONES: Tone[] = ["ok", "busy", "bad", "idle"];

type Ranges = [number, number, SliceState][];

export function HeatStrip({ job, chosen, onChoose }: { job: Job; chosen: number; onChoose: (slice: number) => void }) {
  const poll = usePoll();
  const strip = useQuery({ queryKey: ["job-part", job.id, "strip"], queryFn: () => getStrip(job.id), refetchInterval: poll });
  return (
    <Ask query={strip} loading={<Block className="h-12" />}>
      {(found) => <Strip job={job} ranges={found.ranges as unknown as Ranges} chosen={chosen} onChoose={onChoose} />}
    </Ask>
  );
}

function Strip({ job, ranges, chosen, onChoose }: { job: Job; ranges: Ranges; chosen: number; onChoose: (slice: number) => void }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const count = job.slice_count;

  useEffect(() => {
    const target = canvas.current;
    if (!target) return;
    const draw = () => paint(target, count, ranges, chosen);
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(target);
    window.addEventListener("themechange", draw);
    return () => {
      watcher.disconnect();
      window.removeEventListener("themechange", draw);
    };
  }, [count, ranges, chosen]);

  const choose = (event: PointerEvent<HTMLCanvasElement>) => {
    const edge = event.currentTarget.getBoundingClientRect();
    onChoose(sliceAt(layStrip(count, edge.width), event.clientX - edge.left, event.clientY - edge.top));
  };
  const step = (event: KeyboardEvent) => {
    const moves: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, Home: -chosen, End: count - 1 - chosen };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    onChoose(Math.max(0, Math.min(count - 1, chosen + move)));
  };
  const state = ranges.find(([first, last]) => first <= chosen && chosen <= last)?.[2] ?? "queued";
  return (
    <div>
      <canvas
        ref={canvas}
        role="slider"
        tabIndex={0}
        aria-label={`Slices of the job, ${countOf(count, "slice")}`}
        aria-valuemin={0}
        aria-valuemax={count - 1}
        aria-valuenow={chosen}
        aria-valuetext={`slice ${chosen}, ${state}`}
        onPointerDown={choose}
        onKeyDown={step}
        className="block w-full cursor-pointer"
        style={{ height: layStrip(count, 1200).height }}
      />
      <p className="mt-2 flex flex-wrap items-center gap-x-4 gap-y-1 text-sm text-soft">
        <span>
          Slice <strong className="figure text-ink">{chosen}</strong>: <span className="text-ink">{state}</span>
        </span>
        {[["ok", "done"], ["busy", "running"], ["bad", "failed"], ["idle", "cancelled"]].map(([tone, word]) => (
          <span key={tone} className="inline-flex items-center gap-1.5">
            <span aria-hidden className="size-2.5 rounded-sm" style={{ background: `var(--${tone})` }} />
            {word}
          </span>
        ))}
        <span className="inline-flex items-center gap-1.5">
          <span aria-hidden className="size-2.5 rounded-sm border border-line-strong bg-raised" />
          waiting
        </span>
      </p>
    </div>
  );
}

function paint(canvas: HTMLCanvasElement, count: number, ranges: Ranges, chosen: number): void {
  const density = Math.min(window.devicePixelRatio || 1, 2);
  const layout = layStrip(count, canvas.clientWidth);
  canvas.style.height = `${layout.height}px`;
  canvas.width = Math.round(canvas.clientWidth * density);
  canvas.height = Math.round(layout.height * density);
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(density, density);
  const colours = readColours(canvas);
  for (const [first, last, state] of ranges) {
    const tone = toneOf(state);
    context.fillStyle = (TONES.includes(tone) ? colours[tone] : colours.none) ?? "#888";
    for (let row = Math.floor(first / layout.columns); row <= Math.floor(last / layout.columns); row += 1) {
      const from = Math.max(first, row * layout.columns) - row * layout.columns;
      const to = Math.min(last, (row + 1) * layout.columns - 1) - row * layout.columns;
      if (layout.gap === 0) context.fillRect(from * layout.cell, row * layout.row, (to - from + 1) * layout.cell, layout.row);
      else for (let column = from; column <= to; column += 1) context.fillRect(column * layout.cell, row * layout.row, layout.cell - layout.gap, layout.row - layout.gap);
    }
  }
  const [column, row] = [chosen % layout.columns, Math.floor(chosen / layout.columns)];
  context.strokeStyle = colours.ink ?? "#000";
  context.lineWidth = 2;
  context.strokeRect(Math.max(1, column * layout.cell - 0.5), Math.max(1, row * layout.row - 0.5), Math.max(3, layout.cell - layout.gap), Math.max(3, layout.row - layout.gap) - 1);
}

function readColours(canvas: HTMLCanvasElement): Record<string, string> {
  const probe = document.createElement("span");
  canvas.parentElement?.append(probe);
  const read = (name: string) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const found = { ok: read("ok"), busy: read("busy"), bad: read("bad"), idle: read("idle"), none: read("line"), ink: read("ink") };
  probe.remove();
  return found;
}
