// A run's lines in their order, and a curve with no more points than a screen can show.

export function mergeLines<T extends { id: number }>(before: T[], fresh: T[]): T[] {
  const last = before[before.length - 1]?.id ?? 0;
  if (fresh.every((line, index) => line.id > (fresh[index - 1]?.id ?? last))) return [...before, ...fresh];
  const all = new Map([...before, ...fresh].map((line) => [line.id, line]));
  return [...all.values()].sort((a, b) => a.id - b.id);
}

export interface Feed<T> {
  lines: T[];
  /** Everything up to here has been asked for. */
  after: number;
}

export function addPage<T extends { id: number }>(feed: Feed<T>, page: T[]): Feed<T> {
  if (!page.length) return feed;
  return { lines: mergeLines(feed.lines, page), after: page.reduce((most, line) => Math.max(most, line.id), feed.after) };
}

/** What the stream brings says nothing of what came before it: that is still asked for, page by page. */
export function addLive<T extends { id: number }>(feed: Feed<T>, fresh: T[]): Feed<T> {
  return fresh.length ? { lines: mergeLines(feed.lines, fresh), after: feed.after } : feed;
}

/** Ids in the hub's words as they stand elsewhere on the page. */
export function shortenIds(words: string): string {
  return words.replace(/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{4}([0-9a-f]{8})\b/g, "$1");
}

/** Of each stretch the lowest and the highest point: no spike is lost. A step that was run again counts once, by its last value. */
export function thin(points: { x: number; y: number }[], most: number): { x: number; y: number }[] {
  const once = [...new Map(points.map((point) => [point.x, point])).values()].sort((a, b) => a.x - b.x);
  if (once.length <= most) return once;
  const size = Math.ceil((once.length * 2) / most);
  const kept: { x: number; y: number }[] = [];
  for (let start = 0; start < once.length; start += size) {
    const stretch = once.slice(start, start + size);
    const low = stretch.reduce((a, b) => (b.y < a.y ? b : a));
    const high = stretch.reduce((a, b) => (b.y > a.y ? b : a));
    kept.push(...(low.x < high.x ? [low, high] : low.x > high.x ? [high, low] : [low]));
  }
  return kept;
}

/** Marks of the curve, and no counter of the hub: that one counts losses since the last checkpoint alone. */
export function countRecoveries(lines: { kind: string }[]): number {
  return lines.filter((line) => line.kind === "recovery").length;
}

/** Three figures that count, without a row of noughts before them. */
export function showLoss(loss: number): string {
  return loss !== 0 && Math.abs(loss) < 0.001 ? loss.toExponential(2) : loss.toPrecision(3);
}

const ROUTINE = new Set(["checkpoint", "audit"]);

/** What happened, newest first. Of what happens all the time only the last few: a failure must not be swept away by them. */
export function pickMarks<T extends { kind: string }>(lines: T[], most: number, routineMost: number): T[] {
  const seen = new Map<string, number>();
  const kept: T[] = [];
  for (let index = lines.length - 1; index >= 0 && kept.length < most; index -= 1) {
    const line = lines[index];
    if (!line || line.kind === "step") continue;
    const count = (seen.get(line.kind) ?? 0) + 1;
    seen.set(line.kind, count);
    if (!ROUTINE.has(line.kind) || count <= routineMost) kept.push(line);
  }
  return kept;
}
