"use client";
// The picture of the grid: a map or a graph on canvas, with what the pointer is on told in words.

import { useMutation } from "@tanstack/react-query";
import landAtlas from "world-atlas/land-110m.json";
import type { GeometryCollection, Topology } from "topojson-specification";
import { useEffect, useRef, useState, type PointerEvent } from "react";
import { unplug, type MeshNode } from "@/lib/api/gateway";
import { countOf, showTier } from "@/lib/words";
import { Badge, Button, Tier, Time } from "@/ui/parts";
import { useAccount, useHub } from "@/ui/providers";
import { complain, say } from "@/ui/toasts";
import { MeshCanvas, type MeshView as View } from "./mesh-canvas";
import type { MeshState } from "./mesh.model";

const UNPLUG_SECONDS = 20;

interface Pointed {
  node: MeshNode;
  x: number;
  y: number;
}

export default function MeshView({ state, view }: { state: MeshState; view: View }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<MeshCanvas | null>(null);
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const [chosen, setChosen] = useState<MeshNode | null>(null);
  const first = useRef({ state, view });

  useEffect(() => {
    const [land, base, motion] = box.current?.querySelectorAll("canvas") ?? [];
    if (!box.current || !land || !base || !motion) return;
    const atlas = landAtlas as unknown as Topology<{ land: GeometryCollection }>;
    const drawn = new MeshCanvas(land, base, motion, atlas, first.current.view);
    drawn.setMesh(first.current.state);
    canvas.current = drawn;
    // A benchmark in the browser counts frames here.
    (window as unknown as { mesh?: MeshCanvas }).mesh = drawn;
    const watcher = new ResizeObserver(([entry]) => {
      if (entry) drawn.resize(entry.contentRect.width, entry.contentRect.height);
    });
    watcher.observe(box.current);
    const repaint = () => drawn.repaint();
    const scheme = window.matchMedia("(prefers-color-scheme: dark)");
    window.addEventListener("themechange", repaint);
    scheme.addEventListener("change", repaint);
    const stop = drawn.start();
    return () => {
      stop();
      watcher.disconnect();
      window.removeEventListener("themechange", repaint);
      scheme.removeEventListener("change", repaint);
    };
  }, []);

  useEffect(() => canvas.current?.setMesh(state), [state]);
  useEffect(() => canvas.current?.setView(view), [view]);

  const point = (event: PointerEvent<HTMLDivElement>) => {
    const edge = event.currentTarget.getBoundingClientRect();
    return canvas.current?.pick(event.clientX - edge.left, event.clientY - edge.top) ?? null;
  };
  const online = [...state.nodes.values()].filter((node) => node.online).length;
  const shown = chosen ? (state.nodes.get(chosen.id) ?? null) : null;
  return (
    <div
      ref={box}
      className="absolute inset-0 touch-pan-y"
      onPointerMove={(event) => setPointed(point(event))}
      onPointerLeave={() => setPointed(null)}
      onPointerUp={(event) => !(event.target as Element).closest("[data-panel]") && setChosen(point(event)?.node ?? null)}
    >
      <canvas className="absolute inset-0 size-full transition-opacity" aria-hidden />
      <canvas className="absolute inset-0 size-full" role="img" aria-label={`${view === "map" ? "World map" : "Graph"} of ${countOf(state.nodes.size, "node")}, ${online} online, ${countOf(state.arcs.size, "slice")} running`} />
      <canvas className="pointer-events-none absolute inset-0 size-full" aria-hidden />
      {pointed && pointed.node.id !== shown?.id ? (
        <div className="pointer-events-none absolute z-10 w-max -translate-x-1/2 -translate-y-full rounded-lg border border-line bg-surface px-3 py-1.5 text-sm shadow-lg" style={{ left: pointed.x, top: pointed.y - 12 }}>
          <strong className="font-medium">{showTier(pointed.node.tier)}</strong>
          <span className="text-soft"> {pointed.node.country ?? "country not told"} · {wordOf(pointed.node)}</span>
        </div>
      ) : null}
      {shown ? <NodePanel node={shown} onClose={() => setChosen(null)} /> : null}
    </div>
  );
}

function wordOf(node: MeshNode): string {
  return !node.online ? "offline" : node.busy ? "working" : "free";
}

function NodePanel({ node, onClose }: { node: MeshNode; onClose: () => void }) {
  const hub = useHub();
  const account = useAccount();
  const pull = useMutation({
    mutationFn: () => unplug(node.id, UNPLUG_SECONDS),
    onSuccess: () => say(`Unplugged for ${UNPLUG_SECONDS} s. What ran there moves to another machine.`),
    onError: complain,
  });
  return (
    <div data-panel className="absolute right-3 bottom-3 z-10 grid w-72 max-w-[calc(100%-1.5rem)] gap-3 rounded-xl border border-line bg-surface p-4 shadow-lg">
      <div className="flex items-center justify-between gap-2">
        <strong className="font-semibold">
          <Tier tier={node.tier} />
        </strong>
        <Badge state={!node.online ? "offline" : node.busy ? "working" : "active"}>{wordOf(node)}</Badge>
      </div>
      <dl className="grid grid-cols-2 gap-x-4 gap-y-1 text-sm">
        <dt className="text-soft">Country</dt>
        <dd>{node.country ?? "not told"}</dd>
        <dt className="text-soft">Speed</dt>
        <dd className="figure">{node.speed_tflops ? `${node.speed_tflops.toFixed(1)} TFLOPS` : "not told"}</dd>
        <dt className="text-soft">Slots</dt>
        <dd className="figure">
          {node.busy_slots} of {node.slots} busy
        </dd>
        <dt className="text-soft">Joined</dt>
        <dd>
          <Time at={node.joined_at} />
        </dd>
      </dl>
      <div className="flex gap-2">
        {hub.data?.demo && account && node.synthetic && node.online ? (
          <Button look="danger" disabled={pull.isPending} onClick={() => pull.mutate()}>
            Pull the plug
          </Button>
        ) : null}
        <Button look="quiet" onClick={onClose}>
          Close
        </Button>
      </div>
    </div>
  );
}
