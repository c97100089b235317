import assert from "node:assert/strict";
import { test } from "node:test";
import { cutLog, plainLog } from "./logs.model.ts";

test("colours and controls of a terminal are left out, text stays", () => {
  assert.equal(plainLog("\u001b[31mred\u001b[0m\u0007 <b>bold</b>"), "red <b>bold</b>");
  assert.equal(plainLog("\u001b]0;title\u0007after"), "after");
});

test("a progress line shows its last state", () => {
  assert.equal(plainLog("10 %\r50 %\r100 %\ndone\r\n"), "100 %\ndone\n");
});

test("only the end of a long log is kept, and it says so", () => {
  const long = Array.from({ length: 60_000 }, (_, index) => `line ${index}`).join("\n");
  const cut = cutLog(long);
  assert.ok(cut.length < 401_000);
  assert.ok(cut.startsWith("…") && cut.endsWith("line 59999"));
  assert.equal(cutLog("short"), "short");
});
