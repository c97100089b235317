// What a preview makes of a file, by its name and its bytes. Nothing in a file is ever run or shown as markup.

export type Kind = "image" | "ppm" | "numbers" | "text" | "none";

const IMAGE_TYPES: Record<string, string> = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", bmp: "image/bmp",
};
const TEXT = new Set(["txt", "log", "md", "py", "yaml", "yml", "toml", "csv", "tsv", "json", "ndjson"]);

export const PREVIEW_BYTES_MAX = 2_000_000;

export function endingOf(path: string): string {
  return /\.([a-z0-9]+)$/i.exec(path)?.[1]?.toLowerCase() ?? "";
}

export function imageType(path: string): string | null {
  return IMAGE_TYPES[endingOf(path)] ?? null;
}

export function kindOf(path: string, sizeBytes: number): Kind {
  const ending = endingOf(path);
  if (sizeBytes > PREVIEW_BYTES_MAX || sizeBytes === 0) return "none";
  if (IMAGE_TYPES[ending]) return "image";
  if (ending === "ppm") return "ppm";
  if (ending === "json" || ending === "csv") return "numbers";
  return TEXT.has(ending) ? "text" : "none";
}

/** Columns of numbers that could be drawn: arrays of a JSON object, or columns of a CSV with a heading. */
export function findCurves(path: string, text: string): { name: string; values: number[] }[] {
  const found = endingOf(path) === "csv" ? readColumns(text) : readArrays(text);
  return found.filter((curve) => curve.values.length >= 3).slice(0, 4);
}

function readArrays(text: string): { name: string; values: number[] }[] {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return [];
  }
  const entries: [string, unknown][] = Array.isArray(parsed) ? [["values", parsed]] : parsed && typeof parsed === "object" ? Object.entries(parsed) : [];
  return entries.flatMap(([name, values]) => (isNumbers(values) ? [{ name: name.slice(0, 40), values }] : []));
}

function readColumns(text: string): { name: string; values: number[] }[] {
  const [head = "", ...rows] = text.trim().split(/\r?\n/);
  const cells = rows.map((row) => row.split(","));
  return head.split(",").flatMap((name, column) => {
    const values = cells.map((row) => Number(row[column] ?? ""));
    return isNumbers(values) ? [{ name: name.trim().slice(0, 40), values }] : [];
  });
}

function isNumbers(values: unknown): values is number[] {
  return Array.isArray(values) && values.every((value) => typeof value === "number" && Number.isFinite(value));
}

/** A plain PPM (P3 or P6, 8 bits), the simplest picture that a script can write without a library. */
export function readPpm(bytes: Uint8Array): { width: number; height: number; pixels: Uint8ClampedArray } | null {
  const head = new TextDecoder("latin1").decode(bytes.subarray(0, 200));
  const found = /^P([36])\s+(?:#[^\n]*\n\s*)*(\d{1,5})\s+(\d{1,5})\s+(\d{1,3})\s/.exec(head);
  if (!found) return null;
  const [whole, form, across, down, most] = found;
  const [width, height, top] = [Number(across), Number(down), Number(most)];
  if (!width || !height || width * height > 4_000_000 || !top || top > 255) return null;
  const values = form === "6" ? bytes.subarray(whole.length) : Uint8Array.from(new TextDecoder("latin1").decode(bytes.subarray(whole.length)).trim().split(/\s+/), Number);
  if (values.length < width * height * 3) return null;
  const pixels = new Uint8ClampedArray(width * height * 4);
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    for (let part = 0; part < 3; part += 1) pixels[pixel * 4 + part] = ((values[pixel * 3 + part] ?? 0) * 255) / top;
    pixels[pixel * 4 + 3] = 255;
  }
  return { width, height, pixels };
}
