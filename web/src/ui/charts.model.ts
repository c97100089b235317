// Where the points of a chart stand, and which words stand beside its axes: in pixels, none larger or smaller than others.

export interface Tick {
  at: number;
  words: string;
  anchor: "start" | "middle" | "end";
}

export interface Layout {
  x: (x: number) => number;
  y: (y: number) => number;
  unx: (px: number) => number;
  left: number;
  right: number;
  top: number;
  bottom: number;
  xTicks: Tick[];
  yTicks: Tick[];
}

export interface Wanted {
  xs: number[];
  ys: number[];
  width: number;
  height: number;
  log?: boolean;
  /** Only whole numbers beside the axis. */
  whole?: boolean;
  /** Without axes. */
  bare?: boolean;
  /** The axis begins here, or lower. */
  from?: number;
  showX: (x: number) => string;
  showY: (y: number) => string;
}

const TOP = 12;
const RIGHT = 12;
const BOTTOM = 26;
const BARE = 4;
// Figures of twelve pixels are about this wide.
const LETTER = 7;
const X_TICK_WIDTH = 130;

export function layChart({ xs, ys, width, height, log = false, whole = false, bare = false, from, showX, showY }: Wanted): Layout {
  const [x0, x1] = [least(xs, 0), most(xs, 1)];
  const ticks = log ? decades(ys.filter((y) => y > 0)) : niceTicks(from === undefined ? least(ys, 0) : Math.min(from, least(ys, 0)), most(ys, 1), whole);
  const turn = log ? Math.log10 : (y: number) => y;
  const [low, high] = [turn(ticks[0] ?? 0), turn(ticks[ticks.length - 1] ?? 1)];
  const yTicks = bare ? [] : ticks.map((at): Tick => ({ at, words: showY(at), anchor: "end" }));
  const left = bare ? BARE : 14 + LETTER * most(yTicks.map((tick) => tick.words.length), 3);
  const [right, top, bottom] = bare ? [width - BARE, BARE, height - BARE] : [width - RIGHT, TOP, height - BOTTOM];
  const across = Math.max(1, right - left);
  const span = x1 - x0 || 1;
  return {
    x: (x) => left + ((x - x0) / span) * across,
    y: (y) => bottom - ((turn(Math.max(y, log ? (ticks[0] ?? 1) : -Infinity)) - low) / (high - low || 1)) * (bottom - top),
    unx: (px) => x0 + ((px - left) / across) * span,
    left,
    right,
    top,
    bottom,
    xTicks: bare ? [] : spread(x0, span, across, showX),
    yTicks,
  };
}

/** As many as have room, and none that says what the one before it said. */
function spread(x0: number, span: number, across: number, show: (x: number) => string): Tick[] {
  const count = Math.max(1, Math.min(6, Math.floor(across / X_TICK_WIDTH)));
  const all = Array.from({ length: count + 1 }, (_, index): Tick => {
    const at = x0 + (span * index) / count;
    return { at, words: show(at), anchor: index === 0 ? "start" : index === count ? "end" : "middle" };
  });
  return all.filter((tick, index) => tick.words !== all[index - 1]?.words);
}

function niceTicks(low: number, top: number, whole: boolean): number[] {
  const high = top > low ? top : low + (Math.abs(low) || 1);
  const rough = whole ? Math.max(1, (high - low) / 4) : (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((each) => each * power).find((each) => each >= rough) ?? rough;
  const ticks = [];
  for (let tick = Math.floor(low / step) * step; tick < high + step * 0.999; tick += step) ticks.push(Number(tick.toPrecision(10)));
  return ticks;
}

/** Powers of ten around what is there, no more than six of them. */
function decades(ys: number[]): number[] {
  const low = Math.floor(Math.log10(least(ys, 1)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(most(ys, 10))));
  const step = Math.ceil((high - low) / 5);
  return Array.from({ length: Math.ceil((high - low) / step) + 1 }, (_, index) => Number(`1e${low + index * step}`));
}

// Not Math.min(...): a long curve has more points than a call may have arguments.
function least(values: number[], otherwise: number): number {
  return values.length ? values.reduce((a, b) => (a < b ? a : b)) : otherwise;
}

function most(values: number[], otherwise: number): number {
  return values.length ? values.reduce((a, b) => (a > b ? a : b)) : otherwise;
}
