import assert from "node:assert/strict";
import { test } from "node:test";
import { addLive, addPage, countRecoveries, mergeLines, pickMarks, shortenIds, showLoss, thin } from "./run.model.ts";

test("lines that come twice or out of order stand once and in order", () => {
  const ids = (lines: { id: number }[]) => lines.map((line) => line.id);
  const base = [{ id: 1 }, { id: 2 }];
  assert.deepEqual(ids(mergeLines(base, [{ id: 3 }])), [1, 2, 3]);
  assert.deepEqual(ids(mergeLines([{ id: 1 }, { id: 3 }], [{ id: 2 }, { id: 3 }])), [1, 2, 3]);
});

test("a thinned curve keeps its spikes and its order", () => {
  const long = Array.from({ length: 10_000 }, (_, x) => ({ x, y: x === 5_000 ? 99 : 1 }));
  const short = thin(long, 400);
  assert.ok(short.length <= 400);
  assert.ok(short.some((point) => point.y === 99));
  assert.deepEqual(short.map((point) => point.x), short.map((point) => point.x).sort((a, b) => a - b));
  assert.deepEqual(thin([{ x: 1, y: 5 }, { x: 1, y: 4 }], 10), [{ x: 1, y: 4 }]);
});

test("a failure is not swept away by checkpoints and audits that agree", () => {
  const routine = Array.from({ length: 500 }, (_, index) => ({ id: index + 2, kind: index % 3 ? "checkpoint" : "audit" }));
  const lines = [{ id: 1, kind: "failure" }, ...routine, { id: 900, kind: "step" }, { id: 901, kind: "state" }];
  const kept = pickMarks(lines, 40, 3);
  assert.deepEqual(kept.map((line) => line.kind).sort(), ["audit", "audit", "audit", "checkpoint", "checkpoint", "checkpoint", "failure", "state"]);
  assert.equal(kept[0]?.id, 901);
  assert.equal(kept[kept.length - 1]?.id, 1);
});

test("every recovery is counted, also those before the last checkpoint", () => {
  const kinds = ["placement", "step", "failure", "recovery", "checkpoint", "failure", "recovery", "step"];
  assert.equal(countRecoveries(kinds.map((kind) => ({ kind }))), 2);
});

test("a small loss is read at a glance", () => {
  assert.equal(showLoss(2.3026), "2.30");
  assert.equal(showLoss(0.00003203), "3.20e-5");
  assert.equal(showLoss(0), "0.00");
});

test("what the stream brings early leaves no gap in what is asked for", () => {
  const lines = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, index) => ({ id: from + index }));
  let feed = addLive({ lines: [] as { id: number }[], after: 0 }, lines(1_400, 1_402));
  feed = addPage(feed, lines(1, 500));
  assert.equal(feed.after, 500);
  feed = addPage(addPage(feed, lines(501, 1_000)), lines(1_001, 1_402));
  assert.deepEqual(feed.lines.map((line) => line.id), lines(1, 1_402).map((line) => line.id));
});

test("an id in a sentence is as short as beside it", () => {
  assert.equal(shortenIds("audit of seat-0 (PNode 01a1ea3c-98af-7560-8193-4344440bbe1e), steps 1 to 20: agreed"), "audit of seat-0 (PNode 440bbe1e), steps 1 to 20: agreed");
});
