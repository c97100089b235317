// How a node stands, in one word.

import type { Node } from "../../lib/api/gateway.ts";

export function standingOf(node: Pick<Node, "state" | "online"> & { slots: { busy: boolean }[] }): string {
  if (node.state === "removed") return "removed";
  if (!node.online) return "offline";
  if (node.state !== "active") return node.state;
  return node.slots.some((slot) => slot.busy) ? "working" : "active";
}

/** Each tier once, in the order of the slots. */
export function listTiers(node: { slots: { tier: string }[] }): string[] {
  return [...new Set(node.slots.map((slot) => slot.tier))];
}
