import assert from "node:assert/strict";
import { test } from "node:test";
import { layChart } from "./charts.model.ts";

const plain = { xs: [0, 100], ys: [0, 4], height: 200, showX: (x: number) => x.toFixed(0), showY: (y: number) => y.toFixed(2) };

test("a chart fills what it is given, and a narrow one has fewer words below it", () => {
  const [wide, narrow] = [layChart({ ...plain, width: 1300 }), layChart({ ...plain, width: 320 })];
  assert.equal(wide.x(100), 1288);
  assert.equal(narrow.x(100), 308);
  assert.ok(narrow.xTicks.length < wide.xTicks.length);
  assert.equal(Math.round(narrow.unx(narrow.x(40))), 40);
});

test("the words beside an axis have room, and no two neighbours are the same", () => {
  const long = layChart({ ...plain, width: 800, ys: [0, 5_000_000], showY: (y) => y.toFixed(2) });
  assert.ok(long.left > 10 * 6);
  const minute = layChart({ ...plain, width: 800, xs: [0, 1], showX: () => "15:40" });
  assert.deepEqual(minute.xTicks.map((tick) => tick.words), ["15:40"]);
});

test("a logarithmic axis counts in powers of ten around every value", () => {
  const curve = layChart({ ...plain, width: 800, ys: [2.3, 0.000016, 0], log: true });
  assert.equal(curve.yTicks[0]?.at, 0.00001);
  assert.ok(curve.yTicks.length <= 7);
  assert.ok(curve.y(2.3) >= curve.top && curve.y(0.000016) <= curve.bottom);
  assert.equal(curve.y(0), curve.bottom);
});

test("a curve that is always the same has a place, too", () => {
  const flat = layChart({ ...plain, width: 400, ys: [7, 7], xs: [3] });
  assert.ok(Number.isFinite(flat.y(7)) && Number.isFinite(flat.x(3)));
});
