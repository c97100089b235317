// How a node stands, in one word.

import type { Node } from "../../lib/api/gateway.ts";

export function standingOf(node: Pick<Node, "state" | "online"> & { slots: { busy: boolean }[] }): string {
  if (node.state === "removed") return "removed";
  if (!node.online) return "offline";
  if (node.state !== "active") return node.state;
  return node.slots.some((slot) => slot.busy) ? "working" : "active";
}

/** The last days up to now, those without work, too. */
export function fillDays<T extends { day: string; earned_microcredits: bigint; seconds: number }>(days: T[], count: number, now: Date): (T | { day: string; earned_microcredits: bigint; seconds: number })[] {
  const known = new Map(days.map((day) => [day.day, day]));
  return Array.from({ length: count }, (_, index) => {
    const day = new Date(now.getTime() - (count - 1 - index) * 86_400_000).toISOString().slice(0, 10);
    return known.get(day) ?? { day, earned_microcredits: 0n, seconds: 0 };
  });
}

/** A part of a million of the price, for people. */
export function showBonus(ppm: number): string {
  return ppm ? `${(ppm / 10_000).toFixed(2).replace(/\.?0+$/, "")} %` : "none yet";
}

/** Each tier once, in the order of the slots. */
export function listTiers(node: { slots: { tier: string }[] }): string[] {
  return [...new Set(node.slots.map((slot) => slot.tier))];
}
