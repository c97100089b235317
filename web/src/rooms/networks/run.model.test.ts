import assert from "node:assert/strict";
import { test } from "node:test";
import { countRecoveries, mergeLines, pickMarks, showLoss, thin } from "./run.model.ts";

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
