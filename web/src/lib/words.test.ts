import assert from "node:assert/strict";
import { test } from "node:test";
import { countOf, showBytes, showDuration, showId, showRegion, showRelative, showShare, showTier } from "./words.ts";

test("durations keep two units", () => {
  assert.equal(showDuration(2.34), "2.3 s");
  assert.equal(showDuration(59.4), "59 s");
  assert.equal(showDuration(3 * 60 + 5), "3 min 5 s");
  assert.equal(showDuration(26 * 3600), "1 d 2 h");
});

test("times are told from both sides of now", () => {
  const now = 1_000_000_000;
  assert.equal(showRelative(new Date(now - 500), now), "just now");
  assert.equal(showRelative(new Date(now - 61_000), now), "1 min ago");
  assert.equal(showRelative(new Date(now + 3_600_000), now), "in 1 h");
});

test("sizes, shares, tiers and counts have their units", () => {
  assert.equal(showBytes(512_000_000), "512 MB");
  assert.equal(showBytes(24_000_000_000), "24 GB");
  assert.equal(showBytes(1500), "1.5 kB");
  assert.equal(showShare(200_000), "20 %");
  assert.equal(showTier("gtx-1080ti"), "GTX 1080 Ti");
  assert.equal(showTier("unknown-0"), "Other card");
  assert.equal(showTier("unknown-29"), "Other from 29 TFLOPS");
  assert.equal(showRegion("in"), "IN");
  assert.equal(showRegion("default"), "other");
  assert.equal(countOf(1, "slice"), "1 slice");
  assert.equal(countOf(12000, "slice"), "12\u202f000 slices");
});

test("two ids of the same second are told apart", () => {
  const [one, other] = ["01a1ea29-86be-794f-aa0c-fc4f3f2415f4", "01a1ea29-86be-7a01-9c1d-0e53c10b7a21"];
  assert.notEqual(showId(one), showId(other));
  assert.equal(showId(one), "3f2415f4");
});
