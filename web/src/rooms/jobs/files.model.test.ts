import assert from "node:assert/strict";
import { test } from "node:test";
import { findCurves, imageType, kindOf, readPpm } from "./files.model.ts";

test("what a file is follows from its name, and a large one has no preview", () => {
  assert.equal(kindOf("a/b.PNG", 10), "image");
  assert.equal(kindOf("page.html", 10), "none");
  assert.equal(kindOf("drawing.svg", 10), "none");
  assert.equal(kindOf("weights.bin", 10), "none");
  assert.equal(kindOf("a.png", 10_000_000), "none");
  assert.equal(imageType("x.svg"), null);
});

test("arrays and columns of numbers become curves, anything else does not", () => {
  assert.deepEqual(findCurves("r.json", '{"loss":[3,2,1],"name":"x","few":[1]}'), [{ name: "loss", values: [3, 2, 1] }]);
  assert.deepEqual(findCurves("r.csv", "a,b\n1,x\n2,y\n3,z\n"), [{ name: "a", values: [1, 2, 3] }]);
  assert.deepEqual(findCurves("r.json", "not json"), []);
});

test("a picture of two pixels is read, a broken one is not", () => {
  const head = new TextEncoder().encode("P6\n2 1\n255\n");
  const picture = readPpm(new Uint8Array([...head, 255, 0, 0, 0, 0, 255]));
  assert.deepEqual([...(picture?.pixels ?? [])], [255, 0, 0, 255, 0, 0, 255, 255]);
  assert.equal(readPpm(new Uint8Array([...head, 1])), null);
  assert.equal(readPpm(new TextEncoder().encode("P6\n99999 99999\n255\n")), null);
});
