"use client";
// The network as it is cut: VNodes as boxes, coloured by the machine that holds them; what crosses machines is dashed.

import type { NetworkDetail, RunDetail } from "@/lib/api/gateway";
import { showId } from "@/lib/words";
import { layGraph } from "./graph.model";

const COLOURS = ["--tier-3060", "--tier-gtx", "--tier-3090", "--tier-5090", "--tier-3080", "--tier-4090", "--tier-20", "--tier-4070"];
// A wide graph shrinks to its card, down to this many pixels; below them it is scrolled.
const LEGIBLE = 640;
const [BOX, HIGH, GAP_X, GAP_Y] = [132, 46, 44, 22];

export function VNodeGraph({ network, detail }: { network: NetworkDetail; detail: RunDetail }) {
  const sources = [...new Set(network.edges.map((edge) => edge.source).filter((id) => id.startsWith("@")))];
  const vnodes = [...sources.map((id) => ({ id, block: "data" })), ...network.vnodes];
  const graph = layGraph(vnodes.map((vnode) => vnode.id), network.edges);
  const seats = [...new Set(detail.placements.map((placement) => placement.seat))].sort();
  const seatOf = new Map(detail.placements.map((placement) => [placement.vnode_id, placement.seat]));
  const colourOf = (id: string) => {
    const seat = seatOf.get(id);
    return seat === undefined ? "var(--line-strong)" : `var(${COLOURS[seats.indexOf(seat) % COLOURS.length]})`;
  };
  const at = (id: string) => {
    const place = graph.laid.get(id) ?? { column: 0, row: 0 };
    return { x: 12 + place.column * (BOX + GAP_X), y: 12 + place.row * (HIGH + GAP_Y) };
  };
  const width = 24 + graph.columns * (BOX + GAP_X) - GAP_X;
  const height = 24 + graph.rows * (HIGH + GAP_Y) - GAP_Y;
  const words = vnodes.map((vnode) => `${vnode.id} on ${seatOf.get(vnode.id) ?? "no seat"}`);
  return (
    <div className="overflow-x-auto" tabIndex={0} role="region" aria-label="VNodes">
      <svg role="img" aria-label={`VNodes and their seats: ${words.join(", ")}`} viewBox={`0 0 ${width} ${height}`} className="block h-auto w-full" style={{ maxWidth: width, minWidth: Math.min(width, LEGIBLE) }}>
        {network.edges.map((edge) => {
          const [from, to] = [at(edge.source), at(edge.target)];
          const [x1, y1, x2, y2] = [from.x + BOX, from.y + HIGH / 2, to.x, to.y + HIGH / 2];
          const crosses = seatOf.get(edge.source) !== seatOf.get(edge.target);
          return <path key={`${edge.source} ${edge.target}`} d={`M${x1},${y1}C${x1 + GAP_X / 2},${y1} ${x2 - GAP_X / 2},${y2} ${x2},${y2}`} fill="none" stroke={crosses ? "var(--wait)" : "var(--line-strong)"} strokeWidth={crosses ? 2 : 1.5} strokeDasharray={crosses ? "5 4" : undefined} />;
        })}
        {vnodes.map((vnode) => {
          const { x, y } = at(vnode.id);
          return (
            <g key={vnode.id}>
              <title>{`${vnode.id}: ${vnode.block}, ${seatOf.get(vnode.id) ?? "not placed"}`}</title>
              <rect x={x} y={y} width={BOX} height={HIGH} rx="8" fill="var(--raised)" stroke={colourOf(vnode.id)} strokeWidth="2" />
              <text x={x + 10} y={y + 19} fontSize="13" fontWeight="600" fill="var(--ink)">
                {cut(vnode.id)}
              </text>
              <text x={x + 10} y={y + 36} fontSize="12" fill="var(--soft)">
                {cut(vnode.block)}
              </text>
            </g>
          );
        })}
      </svg>
      <ul className="mt-2 flex flex-wrap gap-x-5 gap-y-1 text-sm">
        {seats.map((seat, index) => {
          const node = detail.seats.find((each) => each.seat === seat)?.node_id;
          return (
            <li key={seat} className="flex items-center gap-1.5">
              <span aria-hidden className="size-2.5 rounded-sm" style={{ background: `var(${COLOURS[index % COLOURS.length]})` }} />
              {seat} <span className="text-soft">{node ? showId(node) : ""}</span>
            </li>
          );
        })}
        <li className="text-soft">dashed: crosses machines</li>
      </ul>
    </div>
  );
}

function cut(text: string): string {
  return text.length > 16 ? `${text.slice(0, 15)}…` : text;
}
