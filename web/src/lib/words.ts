// How figures, times and sizes are written: one way, everywhere.

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const GROUPED = new Intl.NumberFormat("en", { useGrouping: true });

export function showCount(count: number): string {
  return GROUPED.format(count).replaceAll(",", "\u202f");
}

/** "3 slices", "1 slice". */
export function countOf(count: number, one: string, many = `${one}s`): string {
  return `${showCount(count)} ${count === 1 ? one : many}`;
}

export function showDuration(seconds: number): string {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < MINUTE) return `${Math.round(seconds)} s`;
  if (seconds < HOUR) return pair(seconds, MINUTE, "min", 1, "s");
  if (seconds < DAY) return pair(seconds, HOUR, "h", MINUTE, "min");
  return pair(seconds, DAY, "d", HOUR, "h");
}

function pair(seconds: number, unit: number, name: string, small: number, smallName: string): string {
  const whole = Math.floor(seconds / unit);
  const rest = Math.floor((seconds - whole * unit) / small);
  return rest ? `${whole} ${name} ${rest} ${smallName}` : `${whole} ${name}`;
}

/** "just now", "12 s ago", "in 3 min". */
export function showRelative(at: Date, now: number): string {
  const seconds = (now - at.getTime()) / 1000;
  const size = Math.abs(seconds);
  if (size < 2) return "just now";
  const text =
    size < MINUTE
      ? `${Math.floor(size)} s`
      : size < HOUR
        ? `${Math.floor(size / MINUTE)} min`
        : size < DAY
          ? `${Math.floor(size / HOUR)} h`
          : `${Math.floor(size / DAY)} d`;
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

export function showAbsolute(at: Date): string {
  return at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function showBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < BYTE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const text = unit === 0 || value >= 100 ? Math.round(value).toString() : value.toPrecision(value >= 10 ? 3 : 2);
  return `${text.includes(".") ? text.replace(/\.?0+$/, "") : text} ${BYTE_UNITS[unit]}`;
}

/** Parts in a million, as a factor or as a share. */
export function showFactor(ppm: number): string {
  return `×${(ppm / 1e6).toFixed(2)}`;
}

export function showShare(ppm: number): string {
  return `${(ppm / 1e4).toFixed(ppm % 1e4 === 0 ? 0 : 1)} %`;
}

/** "rtx-4090" is "RTX 4090", "cpu" is "CPU"; cards that have no tier of their own are told by their speed. */
export function showTier(tier: string): string {
  const speed = /^unknown-(\d+)$/.exec(tier)?.[1];
  if (speed !== undefined) return speed === "0" ? "Other card" : `Other from ${speed} TFLOPS`;
  return tier.replaceAll("-", " ").toUpperCase().replace(/TI$/, " Ti").replace(/\s+Ti/, " Ti");
}

export function showEnum(value: string): string {
  return value.replaceAll("_", " ");
}

/** The end of an id, as the terminal shows it. Its start is the time, which all ids of a minute have in common. */
export function showId(id: string): string {
  return id.slice(-8);
}

/** A region of the rate card: "in" is "IN"; `default` is every country that has no region. */
export function showRegion(region: string): string {
  return region === "default" ? "other" : region.toUpperCase();
}

/** The hub's words, where they stand alone. */
export function toSentence(words: string): string {
  const begun = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
