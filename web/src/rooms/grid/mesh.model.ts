// The mesh as the page holds it: loaded once, then changed by deltas. Applying one twice changes nothing.

import type { MeshArc, MeshEdge, MeshNode } from "../../lib/api/gateway.ts";
import type { MeshDelta } from "../../lib/live.ts";

export type Point = readonly [number, number];

export interface MeshState {
  nodes: Map<string, MeshNode>;
  arcs: Map<string, MeshArc>;
  edges: MeshEdge[];
  hub: Point | null;
}

export function startMesh(mesh: { nodes: MeshNode[]; arcs: MeshArc[]; edges: MeshEdge[]; hub: { point: number[] | null } | null | undefined }): MeshState {
  const point = mesh.hub?.point;
  return {
    nodes: new Map(mesh.nodes.map((node) => [node.id, node])),
    arcs: new Map(mesh.arcs.map((arc) => [arc.id, arc])),
    edges: mesh.edges,
    hub: point ? [point[0] ?? 0, point[1] ?? 0] : null,
  };
}

export function applyDelta(state: MeshState, delta: MeshDelta): MeshState {
  for (const node of delta.nodes) state.nodes.set(node.id, node);
  for (const id of delta.gone) state.nodes.delete(id);
  for (const arc of delta.arcs) state.arcs.set(arc.id, arc);
  for (const id of delta.ended) state.arcs.delete(id);
  return { ...state, edges: delta.edges ?? state.edges };
}

/** Seeds of a sunflower: n points around a centre, evenly, the first one in the middle. */
export function sunflower(index: number, spacing: number): Point {
  const radius = spacing * Math.sqrt(index);
  const angle = index * 2.399963229728653;
  return [radius * Math.cos(angle), radius * Math.sin(angle)];
}

/** Radius of a node's dot in CSS pixels: by the logarithm of its speed, smaller where the map is crowded. */
export function dotRadius(speedTflops: number | null, nodeCount: number): number {
  const speed = Math.max(0, Math.min(1, Math.log10(1 + (speedTflops ?? 0)) / 2.1));
  const room = nodeCount > 4000 ? 0.5 : nodeCount > 800 ? 0.75 : nodeCount > 100 ? 1.1 : 1.7;
  return (2.4 + 3.2 * speed) * room;
}

/** Where each tier's cluster stands in the graph: on an ellipse, in the order given, larger ones with more room. */
export function clusterCentres(sizes: number[], width: number, height: number): Point[] {
  const weights = sizes.map((size) => Math.sqrt(size) + 2);
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  let turned = -Math.PI / 2;
  return weights.map((weight) => {
    const half = (Math.PI * weight) / total;
    const angle = turned + half;
    turned += 2 * half;
    return [width / 2 + width * 0.33 * Math.cos(angle), height / 2 + height * 0.31 * Math.sin(angle)];
  });
}

/** The pairs that arcs are drawn between: from the hub, else around the nodes of one job. */
export function pairArcs(state: MeshState, limit: number): { from: string | null; to: string; id: string }[] {
  const pairs: { from: string | null; to: string; id: string }[] = [];
  const lastOf = new Map<string, string>();
  for (const arc of state.arcs.values()) {
    if (pairs.length >= limit) break;
    if (!state.nodes.has(arc.node)) continue;
    if (state.hub) {
      pairs.push({ from: null, to: arc.node, id: arc.id });
      continue;
    }
    const before = lastOf.get(arc.job);
    if (before && before !== arc.node) pairs.push({ from: before, to: arc.node, id: arc.id });
    lastOf.set(arc.job, arc.node);
  }
  return pairs;
}
