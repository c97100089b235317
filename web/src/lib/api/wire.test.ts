import assert from "node:assert/strict";
import { test } from "node:test";
import { fromWire } from "./wire.ts";

test("amounts become bigint and times become dates, wherever they stand", () => {
  const found = fromWire({
    jobs: [{ held_microcredits: 5, created_at: "2026-01-02T03:04:05Z", finished_at: null, name: "at" }],
    slice_bases_microcredits: { ml: 2_500_000 },
    at: "2026-01-02T03:04:05Z",
  });
  assert.equal(found.jobs[0]?.held_microcredits, 5n);
  assert.equal(found.jobs[0]?.created_at.getTime(), Date.UTC(2026, 0, 2, 3, 4, 5));
  assert.equal(found.jobs[0]?.finished_at, null);
  assert.equal(found.jobs[0]?.name, "at");
  assert.equal(found.slice_bases_microcredits.ml, 2_500_000n);
  assert.ok(found.at instanceof Date);
});

test("what strangers wrote is passed on as it is", () => {
  const body = { fake_microcredits: "all of them", at: "never" };
  assert.deepEqual(fromWire({ body }).body, body);
});

test("control: an amount that is none is refused, not shown", () => {
  assert.throws(() => fromWire({ held_microcredits: 0.1 }));
});
