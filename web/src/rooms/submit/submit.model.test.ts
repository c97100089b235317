import assert from "node:assert/strict";
import { test } from "node:test";
import { fromSpec, quoteWord, splitCommand, START, toCommandLine, toPython, toSpec } from "./submit.model.ts";

test("a command is split as a shell would, and an open quote is no command", () => {
  assert.deepEqual(splitCommand("sh -c 'echo $X > \"a b\"'"), ["sh", "-c", 'echo $X > "a b"']);
  assert.deepEqual(splitCommand('a "b c" d\\ e ""'), ["a", "b c", "d e", ""]);
  assert.equal(splitCommand("echo 'open"), null);
});

test("quoting and splitting undo each other", () => {
  for (const word of ["plain", "with space", "it's", '"', "$HOME", "", "a\\b", "ü"]) {
    assert.deepEqual(splitCommand(quoteWord(word)), [word]);
  }
});

test("the form, the command and the program ask for the same", () => {
  const draft = { ...START, gpu: true, vramGb: 16, slices: 8, ceiling: "40", mode: "command" as const, command: "sh -c 'nproc'", name: "a b" };
  const spec = toSpec(draft, 40_000_000);
  assert.equal(spec.requirements.vram_bytes, 16_000_000_000);
  assert.deepEqual(spec.command, ["sh", "-c", "nproc"]);
  assert.equal(toCommandLine(draft), "computepool run --name 'a b' --slices 8 --vram 16GB --max-price 40 --wall 10m -- sh -c nproc");
  assert.match(toPython(draft), /vram="16GB"/);
  assert.match(toPython(draft), /max_price="40"/);
  const checked = { ...draft, compare: "exact" as const, verify: "quorum" as const };
  assert.match(toCommandLine(checked), /--compare exact --verify quorum/);
  assert.match(toPython(checked), /compare="exact",\n {4}verify="quorum"/);
});

test("a job that is run again asks for what it asked for", () => {
  const spec = toSpec({ ...START, gpu: true, vramGb: 8, region: "in", compare: "numeric", verify: "quorum" }, 5_000_000);
  const again = fromSpec(spec);
  assert.deepEqual(toSpec(again, 5_000_000), spec);
  assert.equal(fromSpec({ compare: { kind: "command" } }).compare, "none", "not by another measure than was asked for");
});
