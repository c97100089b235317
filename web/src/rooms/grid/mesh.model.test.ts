import assert from "node:assert/strict";
import { test } from "node:test";
import type { MeshNode } from "../../lib/api/gateway.ts";
import { applyDelta, clusterCentres, dotRadius, pairArcs, startMesh } from "./mesh.model.ts";

const node = (id: string, busy = false) => ({ id, busy, tier: "cpu" }) as unknown as MeshNode;
const arc = (id: string, at: string, job = "j") => ({ id, node: at, job, since: new Date(0) });
const empty = { gone: [], arcs: [], ended: [], edges: null, nodes: [] };

test("a delta that is applied twice changes nothing the second time", () => {
  const delta = { ...empty, nodes: [node("b", true)], gone: ["a"], arcs: [arc("x", "b")] };
  const once = applyDelta(startMesh({ nodes: [node("a")], arcs: [], edges: [], hub: null }), delta);
  const ids = [...once.nodes.keys(), ...once.arcs.keys()];
  const twice = applyDelta(once, delta);
  assert.deepEqual([...twice.nodes.keys(), ...twice.arcs.keys()], ids);
  assert.deepEqual(ids, ["b", "x"]);
});

test("arcs start at the hub, and without one they tie the nodes of a job together", () => {
  const nodes = [node("a"), node("b"), node("c")];
  const arcs = [arc("1", "a"), arc("2", "b"), arc("3", "c", "other"), arc("4", "gone")];
  const placed = startMesh({ nodes, arcs, edges: [], hub: { point: [10, 50] } });
  assert.deepEqual(pairArcs(placed, 10).map((pair) => [pair.from, pair.to]), [[null, "a"], [null, "b"], [null, "c"]]);
  const unplaced = startMesh({ nodes, arcs, edges: [], hub: null });
  assert.deepEqual(pairArcs(unplaced, 10).map((pair) => [pair.from, pair.to]), [["a", "b"]]);
  assert.equal(pairArcs(placed, 1).length, 1);
});

test("a faster machine is a larger dot, and a crowd has smaller ones", () => {
  assert.ok(dotRadius(80, 10) > dotRadius(5, 10));
  assert.ok(dotRadius(80, 10) > dotRadius(80, 10_000));
  assert.ok(dotRadius(null, 10) > 0);
});

test("clusters stay on the page", () => {
  for (const [x, y] of clusterCentres([5000, 3, 1], 1000, 500)) {
    assert.ok(x > 100 && x < 900 && y > 50 && y < 450);
  }
});
