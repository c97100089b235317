import assert from "node:assert/strict";
import { test } from "node:test";
import { padDecimals, parseCredits, showCash, showCredits, showCreditsShort, toMicrocredits, toWire } from "./money.ts";

test("amounts are shown to the last digit that counts", () => {
  assert.equal(showCredits(1_500_000n), "1.50");
  assert.equal(showCredits(1n), "0.000001");
  assert.equal(showCredits(-12_345_678_900_000n), "−12\u202f345\u202f678.90");
  assert.equal(showCredits(0n), "0.00");
});

test("a short amount is cut, never rounded up, and never hides what is there", () => {
  assert.equal(showCreditsShort(1_999_999n), "1.99");
  assert.equal(showCreditsShort(9_999n), "<0.01");
  assert.equal(showCreditsShort(0n), "0.00");
});

test("what is typed comes back as the same amount", () => {
  assert.equal(parseCredits("12.5"), 12_500_000n);
  assert.equal(parseCredits("0,000001"), 1n);
  assert.equal(parseCredits("1e3"), null);
  assert.equal(parseCredits("-4"), null);
  assert.equal(parseCredits("1.0000001"), null);
  assert.equal(parseCredits(""), null);
});

test("a number that a float cannot hold exactly is refused", () => {
  assert.throws(() => toMicrocredits(0.5));
  assert.throws(() => toMicrocredits(2 ** 53));
  assert.throws(() => toMicrocredits("1.5"));
  assert.throws(() => toWire(10n ** 20n));
  assert.equal(toMicrocredits("900719925474099300"), 900719925474099300n);
});

test("cash has the decimals of its currency", () => {
  assert.equal(showCash(150, "INR"), "1.50 INR");
  assert.equal(showCash(1234567, "JPY"), "1\u202f234\u202f567 JPY");
});

test("amounts of a column come to the same number of decimals", () => {
  for (const amount of [1_500_000n, 55_466n, 34_090n, -1n]) {
    const shown = showCredits(amount);
    assert.equal((shown + padDecimals(shown)).split(".")[1]?.length, 6);
  }
});
