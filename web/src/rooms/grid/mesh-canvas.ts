// Draws the mesh on three canvases: the land, once; the nodes, when they change; what moves, on every frame.
// Dots are stamped from small pictures made beforehand: ten thousand of them cost a few milliseconds.

import { geoEqualEarth, geoPath, type GeoProjection } from "d3-geo";
import { feature } from "topojson-client";
import type { GeometryCollection, Topology } from "topojson-specification";
import type { MeshNode } from "@/lib/api/gateway";
import { tierColour } from "@/lib/states";
import { clusterCentres, dotRadius, pairArcs, sunflower, type MeshState, type Point } from "./mesh.model";

export type MeshView = "map" | "graph";

const ARCS_MAX = 400;
const PULSES_MAX = 1500;
const PULSE_STEPS = 24;
const PULSE_SECONDS = 2;
const ARC_SECONDS = 2.4;
const MORPH_SECONDS = 0.9;
const LAND_STEP = 7;
const DENSITY_MAX = 2;
/** What of the globe is shown: nobody lends a machine in Antarctica. */
const SHOWN = { type: "MultiPoint" as const, coordinates: [[-168, 8], [178, 8], [0, 76], [0, -54]] as [number, number][] };

interface Dot {
  node: MeshNode;
  map: Point;
  graph: Point;
  radius: number;
  phase: number;
}

interface Curve {
  from: Dot | null;
  to: Dot;
  phase: number;
}

export class MeshCanvas {
  private dots: Dot[] = [];
  private byId = new Map<string, Dot>();
  private busy: Dot[] = [];
  private curves: Curve[] = [];
  private edges: [Dot, Dot][] = [];
  private state: MeshState | null = null;
  private width = 0;
  private height = 0;
  private density = 1;
  private projection: GeoProjection = geoEqualEarth();
  private view: MeshView;
  /** 0 is the map, 1 the graph. */
  private turn: number;
  private stamps = new Map<string, HTMLCanvasElement>();
  private rings: HTMLCanvasElement[] = [];
  private spark: HTMLCanvasElement | null = null;
  private dirty = true;
  private frame = 0;
  private lastAt = 0;
  private still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  /** Frames drawn since the start, for those who measure. */
  frames = 0;

  constructor(
    private land: HTMLCanvasElement,
    private base: HTMLCanvasElement,
    private motion: HTMLCanvasElement,
    private atlas: Topology<{ land: GeometryCollection }>,
    view: MeshView,
  ) {
    this.view = view;
    this.turn = view === "graph" ? 1 : 0;
  }

  start(): () => void {
    const step = (now: number) => {
      this.draw(now / 1000);
      this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
    return () => cancelAnimationFrame(this.frame);
  }

  resize(width: number, height: number): void {
    this.width = width;
    this.height = height;
    this.density = Math.min(window.devicePixelRatio || 1, DENSITY_MAX);
    for (const canvas of [this.land, this.base, this.motion]) {
      canvas.width = Math.round(width * this.density);
      canvas.height = Math.round(height * this.density);
    }
    this.projection = geoEqualEarth().fitExtent([[8, 8], [width - 8, height - 8]], SHOWN);
    this.repaint();
  }

  /** After a change of size or colours. */
  repaint(): void {
    if (!this.width) return;
    this.stamps.clear();
    this.rings = [];
    this.spark = null;
    this.drawLand();
    this.place();
  }

  setView(view: MeshView): void {
    this.view = view;
    if (this.still) this.turn = view === "graph" ? 1 : 0;
    this.dirty = true;
  }

  setMesh(state: MeshState): void {
    this.state = state;
    this.place();
  }

  /** The node under the pointer, if one is near enough. */
  pick(x: number, y: number): { node: MeshNode; x: number; y: number } | null {
    let best: Dot | null = null;
    let nearest = 14 ** 2;
    for (const dot of this.dots) {
      const [dx, dy] = this.at(dot);
      const distance = (dx - x) ** 2 + (dy - y) ** 2;
      if (distance < nearest) [best, nearest] = [dot, distance];
    }
    if (!best) return null;
    const [bx, by] = this.at(best);
    return { node: best.node, x: bx, y: by };
  }

  private colour(name: string): string {
    return getComputedStyle(this.land).getPropertyValue(name).trim() || "#888";
  }

  /** Custom properties with light-dark() are resolved only where they are used as a colour. */
  private resolved(name: string): string {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    this.land.parentElement?.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found || this.colour(name);
  }

  private drawLand(): void {
    const context = this.land.getContext("2d");
    if (!context) return;
    const mask = document.createElement("canvas");
    mask.width = Math.ceil(this.width);
    mask.height = Math.ceil(this.height);
    const inside = mask.getContext("2d", { willReadFrequently: true });
    if (!inside) return;
    inside.beginPath();
    geoPath(this.projection, inside)(feature(this.atlas, this.atlas.objects.land));
    inside.fill();
    const pixels = inside.getImageData(0, 0, mask.width, mask.height).data;
    context.setTransform(this.density, 0, 0, this.density, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.fillStyle = this.resolved("--land-dot");
    // The projection fits the inhabited world, and a tall page has room below it.
    const bottom = Math.min(this.height, (this.project([0, -57]) ?? [0, this.height])[1]);
    const step = Math.max(4.5, Math.min(LAND_STEP, this.width / 170));
    for (let row = 0, y = 3; y < bottom; row += 1, y += step) {
      for (let x = row % 2 ? 3 + step / 2 : 3; x < this.width; x += step) {
        if ((pixels[(Math.floor(y) * mask.width + Math.floor(x)) * 4 + 3] ?? 0) < 128) continue;
        context.beginPath();
        context.arc(x, y, step * 0.24, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }

  /** Where every dot stands on the map and in the graph. */
  private place(): void {
    if (!this.state || !this.width) return;
    const nodes = [...this.state.nodes.values()];
    const tiers = [...new Set(nodes.map((node) => node.tier))].sort();
    const sizes = tiers.map((tier) => nodes.filter((node) => node.tier === tier).length);
    const centres = clusterCentres(sizes, this.width, this.height);
    const largest = Math.max(1, ...sizes);
    const spacing = Math.min(13, (Math.min(this.width, this.height) * 0.2) / Math.sqrt(largest));
    const seen = new Map<string, number>();
    let elsewhere = 0;
    this.dots = nodes.map((node) => {
      const rank = seen.get(node.tier) ?? 0;
      seen.set(node.tier, rank + 1);
      const [cx, cy] = centres[tiers.indexOf(node.tier)] ?? [0, 0];
      const [sx, sy] = sunflower(rank, spacing);
      const map = this.project(node.point) ?? this.cornerOf(elsewhere++);
      const phase = hash(node.id);
      return { node, map, graph: [cx + sx, cy + sy], radius: dotRadius(node.speed_tflops ?? null, nodes.length), phase };
    });
    this.busy = this.dots.filter((dot) => dot.node.busy && dot.node.online);
    this.byId = new Map(this.dots.map((dot) => [dot.node.id, dot]));
    this.curves = pairArcs(this.state, ARCS_MAX).flatMap(({ from, to, id }) => {
      const target = this.byId.get(to);
      return target ? [{ from: from ? (this.byId.get(from) ?? null) : null, to: target, phase: hash(id) }] : [];
    });
    this.edges = this.state.edges.flatMap((edge): [Dot, Dot][] => {
      const [from, to] = [this.byId.get(edge.source), this.byId.get(edge.target)];
      return from && to ? [[from, to]] : [];
    });
    this.dirty = true;
  }

  private project(point: readonly number[] | null | undefined): Point | null {
    if (!point) return null;
    const found = this.projection([point[0] ?? 0, point[1] ?? 0]);
    return found ? [found[0], found[1]] : null;
  }

  /** Nodes whose owners named no country stand together in the South Pacific, where no land is. */
  private cornerOf(index: number): Point {
    const [cx, cy] = this.project([-128, -30]) ?? [40, this.height - 60];
    const [sx, sy] = sunflower(index, Math.max(2.5, Math.min(9, 60 / Math.sqrt(this.state?.nodes.size ?? 1))));
    return [cx + sx, cy + sy];
  }

  private at(dot: Dot): Point {
    const t = ease(this.turn);
    return [dot.map[0] + (dot.graph[0] - dot.map[0]) * t, dot.map[1] + (dot.graph[1] - dot.map[1]) * t];
  }

  private hubAt(): Point {
    const t = ease(this.turn);
    const [x, y] = this.project(this.state?.hub) ?? [this.width / 2, this.height / 2];
    return [x + (this.width / 2 - x) * t, y + (this.height / 2 - y) * t];
  }

  private draw(now: number): void {
    const passed = Math.min(0.1, now - this.lastAt);
    this.lastAt = now;
    this.frames += 1;
    if (!this.width || !this.state) return;
    const goal = this.view === "graph" ? 1 : 0;
    if (this.turn !== goal) {
      const moved = this.turn + Math.sign(goal - this.turn) * (passed / MORPH_SECONDS);
      this.turn = Math.max(0, Math.min(1, moved));
      this.dirty = true;
    }
    if (this.dirty) this.drawNodes();
    if (!this.still) this.drawMotion(now);
  }

  private drawNodes(): void {
    this.dirty = false;
    this.land.style.opacity = String(1 - ease(this.turn));
    const context = this.base.getContext("2d");
    if (!context) return;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.base.width, this.base.height);
    context.save();
    context.scale(this.density, this.density);
    this.drawLines(context);
    context.restore();
    for (const dot of this.dots) {
      const stamp = this.stampOf(dot);
      const [x, y] = this.at(dot);
      context.drawImage(stamp, Math.round(x * this.density - stamp.width / 2), Math.round(y * this.density - stamp.height / 2));
    }
  }

  private drawLines(context: CanvasRenderingContext2D): void {
    context.lineWidth = this.curves.length > 60 ? 1 : 1.6;
    context.strokeStyle = this.resolved("--busy");
    context.globalAlpha = this.curves.length > 60 ? 0.3 : 0.55;
    context.beginPath();
    for (const curve of this.curves) trace(context, this.ends(curve));
    context.stroke();
    context.globalAlpha = 0.9;
    context.lineWidth = 1.5;
    context.strokeStyle = this.resolved("--wait");
    context.beginPath();
    for (const [from, to] of this.edges) trace(context, [this.at(from), this.at(to)]);
    context.stroke();
    context.globalAlpha = 1;
    if (this.state?.hub || this.turn > 0.5) {
      const [x, y] = this.hubAt();
      context.strokeStyle = this.resolved("--accent");
      context.fillStyle = this.resolved("--surface");
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(x, y, 6, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
      context.fillStyle = this.resolved("--soft");
      context.font = "600 12px system-ui, sans-serif";
      context.fillText("hub", x + 11, y - 7);
    }
  }

  private ends(curve: Curve): [Point, Point] {
    return [curve.from ? this.at(curve.from) : this.hubAt(), this.at(curve.to)];
  }

  private drawMotion(now: number): void {
    const context = this.motion.getContext("2d");
    if (!context) return;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.motion.width, this.motion.height);
    const rings = this.ringStamps();
    const stride = Math.max(1, Math.ceil(this.busy.length / PULSES_MAX));
    for (let index = Math.floor(now / PULSE_SECONDS) % stride; index < this.busy.length; index += stride) {
      const dot = this.busy[index];
      if (!dot) continue;
      const age = (now / PULSE_SECONDS + dot.phase) % 1;
      const ring = rings[Math.floor(age * PULSE_STEPS)];
      const [x, y] = this.at(dot);
      if (ring) context.drawImage(ring, Math.round(x * this.density - ring.width / 2), Math.round(y * this.density - ring.height / 2));
    }
    const spark = this.sparkStamp();
    for (const curve of this.curves) {
      const [from, to] = this.ends(curve);
      const [x, y] = along(from, to, (now / ARC_SECONDS + curve.phase) % 1);
      context.drawImage(spark, x * this.density - spark.width / 2, y * this.density - spark.height / 2);
    }
  }

  private stampOf(dot: Dot): HTMLCanvasElement {
    const size = Math.round(dot.radius * 2) / 2;
    const name = `${tierColour(dot.node.tier)} ${size} ${dot.node.online}`;
    const made = this.stamps.get(name);
    if (made) return made;
    const stamp = this.makeStamp(size + 1.5, (context, centre) => {
      context.beginPath();
      context.arc(centre, centre, size, 0, 2 * Math.PI);
      const colour = this.resolved(tierColour(dot.node.tier));
      if (dot.node.online) {
        context.fillStyle = colour;
        context.fill();
        context.lineWidth = size > 2.5 ? 1 : 0.5;
        context.strokeStyle = this.resolved("--ground");
        context.stroke();
      } else {
        context.globalAlpha = 0.7;
        context.lineWidth = 1;
        context.strokeStyle = colour;
        context.stroke();
      }
    });
    this.stamps.set(name, stamp);
    return stamp;
  }

  private ringStamps(): HTMLCanvasElement[] {
    if (this.rings.length) return this.rings;
    const colour = this.resolved("--busy");
    const reach = this.dots.length > 800 ? 7 : this.dots.length > 100 ? 14 : 24;
    this.rings = Array.from({ length: PULSE_STEPS }, (_, step) =>
      this.makeStamp(reach + 2, (context, centre) => {
        const age = step / PULSE_STEPS;
        context.globalAlpha = 0.75 * (1 - age);
        context.strokeStyle = colour;
        context.lineWidth = 1.5;
        context.beginPath();
        context.arc(centre, centre, 2 + (reach - 2) * age, 0, 2 * Math.PI);
        context.stroke();
      }),
    );
    return this.rings;
  }

  private sparkStamp(): HTMLCanvasElement {
    this.spark ??= this.makeStamp(4, (context, centre) => {
      context.fillStyle = this.resolved("--busy");
      context.beginPath();
      context.arc(centre, centre, this.curves.length > 60 ? 1.8 : 2.8, 0, 2 * Math.PI);
      context.fill();
    });
    return this.spark;
  }

  private makeStamp(reach: number, paint: (context: CanvasRenderingContext2D, centre: number) => void): HTMLCanvasElement {
    const stamp = document.createElement("canvas");
    stamp.width = stamp.height = Math.ceil(reach * 2 * this.density);
    const context = stamp.getContext("2d");
    if (context) {
      context.scale(this.density, this.density);
      paint(context, stamp.width / this.density / 2);
    }
    return stamp;
  }
}

function bend([ax, ay]: Point, [bx, by]: Point): Point {
  const lift = Math.min(90, Math.hypot(bx - ax, by - ay) * 0.25);
  return [(ax + bx) / 2, (ay + by) / 2 - lift];
}

function trace(context: CanvasRenderingContext2D, [from, to]: [Point, Point]): void {
  const [cx, cy] = bend(from, to);
  context.moveTo(from[0], from[1]);
  context.quadraticCurveTo(cx, cy, to[0], to[1]);
}

function along(from: Point, to: Point, t: number): Point {
  const [cx, cy] = bend(from, to);
  const [a, b, c] = [(1 - t) ** 2, 2 * t * (1 - t), t ** 2];
  return [a * from[0] + b * cx + c * to[0], a * from[1] + b * cy + c * to[1]];
}

function ease(t: number): number {
  return t * t * (3 - 2 * t);
}

/** A number from 0 to 1 that is always the same for a name. */
function hash(name: string): number {
  let value = 2166136261;
  for (let index = 0; index < name.length; index += 1) value = Math.imul(value ^ name.charCodeAt(index), 16777619);
  return (value >>> 0) / 4294967296;
}
