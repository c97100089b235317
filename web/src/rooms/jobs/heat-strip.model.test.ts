import assert from "node:assert/strict";
import { test } from "node:test";
import { layStrip, sliceAt } from "./heat-strip.model.ts";

test("every number of slices fits into the strip, on a phone as on a wall", () => {
  for (const width of [320, 800, 2400]) {
    for (const count of [1, 7, 64, 1000, 100_000]) {
      const layout = layStrip(count, width);
      assert.ok(layout.height <= 160 && layout.height > 0);
      assert.ok(layout.columns * layout.cell <= width);
      assert.ok(Math.ceil(count / layout.columns) * layout.row <= layout.height + 0.01);
    }
  }
});

test("the slice under the pointer is the one that was drawn there", () => {
  const layout = layStrip(1000, 800);
  for (const slice of [0, 1, 57, 999]) {
    const x = (slice % layout.columns) * layout.cell + layout.cell / 2;
    const y = Math.floor(slice / layout.columns) * layout.row + layout.row / 2;
    assert.equal(sliceAt(layout, x, y), slice);
  }
  assert.equal(sliceAt(layout, 1e6, 1e6), 999);
  assert.equal(sliceAt(layout, -5, -5), 0);
});
