import assert from "node:assert/strict";
import { test } from "node:test";
import { fillDays, listTiers, showBonus, standingOf } from "./node.model.ts";

test("a node's standing is the first thing that an owner would want to know", () => {
  const node = { state: "active" as const, online: true, slots: [{ busy: false }] };
  assert.equal(standingOf(node), "active");
  assert.equal(standingOf({ ...node, slots: [{ busy: true }] }), "working");
  assert.equal(standingOf({ ...node, online: false }), "offline");
  assert.equal(standingOf({ ...node, state: "draining" }), "draining");
  assert.equal(standingOf({ ...node, state: "removed", online: false }), "removed");
});

test("days without work are days, too", () => {
  const days = fillDays([{ day: "2026-01-02", earned_microcredits: 5n, seconds: 1 }], 3, new Date("2026-01-03T10:00:00Z"));
  assert.deepEqual(days.map((day) => [day.day, day.earned_microcredits]), [["2026-01-01", 0n], ["2026-01-02", 5n], ["2026-01-03", 0n]]);
});

test("tiers are listed once", () => {
  assert.deepEqual(listTiers({ slots: [{ tier: "cpu" }, { tier: "rtx-4090" }, { tier: "cpu" }] }), ["cpu", "rtx-4090"]);
});

test("a bonus is a percentage without zeros that say nothing", () => {
  assert.deepEqual([0, 333, 10_000, 25_000, 50_000].map(showBonus), ["none yet", "0.03 %", "1 %", "2.5 %", "5 %"]);
});
