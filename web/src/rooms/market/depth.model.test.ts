import assert from "node:assert/strict";
import { test } from "node:test";
import { stack } from "./depth.model.ts";

test("offers rise with the price, bids fall, and both count everything once", () => {
  const [offers, bids] = stack([{ price: 10, count: 2 }, { price: 20, count: 3 }], [{ price: 15, count: 4 }, { price: 25, count: 1 }], 18);
  const heights = offers?.points.map((point) => point.y) ?? [];
  assert.deepEqual(heights, [...heights].sort((a, b) => a - b));
  assert.equal(heights.at(-1), 5);
  const falls = bids?.points.map((point) => point.y) ?? [];
  assert.deepEqual(falls, [...falls].sort((a, b) => b - a));
  assert.equal(falls[0], 5);
  assert.equal(falls.at(-1), 0);
});
