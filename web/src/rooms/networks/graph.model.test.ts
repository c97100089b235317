import assert from "node:assert/strict";
import { test } from "node:test";
import { layGraph } from "./graph.model.ts";

test("a chain is a row, and branches share a column", () => {
  const chain = layGraph(["a", "b", "c"], [{ source: "a", target: "b" }, { source: "b", target: "c" }]);
  assert.deepEqual([...chain.laid.values()].map((each) => each.column), [0, 1, 2]);
  const fork = layGraph(["a", "b", "c", "d"], [{ source: "a", target: "b" }, { source: "a", target: "c" }, { source: "b", target: "d" }, { source: "c", target: "d" }]);
  assert.deepEqual([fork.columns, fork.rows, fork.laid.get("d")?.column], [3, 2, 2]);
});

test("a circle or an unknown end does not hang it", () => {
  const circle = layGraph(["a", "b"], [{ source: "a", target: "b" }, { source: "b", target: "a" }, { source: "a", target: "nobody" }]);
  assert.ok(circle.columns <= 2);
});
