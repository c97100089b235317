// Money: whole microcredits as bigint, from the wire to the screen. Nothing here rounds what it shows to a person
// without saying so, and no float touches an amount.

export type Microcredits = bigint;

export const MICROCREDITS_PER_CREDIT = 1_000_000n;

/** The wire sends whole numbers below 2^53, or strings. Anything else is a fault of the hub, never a guess. */
export function toMicrocredits(value: number | string): Microcredits {
  if (typeof value === "string") {
    if (!/^-?\d+$/.test(value)) throw new Error(`not an amount of microcredits: ${value}`);
    return BigInt(value);
  }
  if (!Number.isSafeInteger(value)) throw new Error(`not an exact amount of microcredits: ${value}`);
  return BigInt(value);
}

export function findMicrocredits(value: number | string | null | undefined): Microcredits | null {
  return value === null || value === undefined ? null : toMicrocredits(value);
}

/** Every digit that counts, at least two decimals: 1.5 credits are "1.50", one microcredit is "0.000001". */
export function showCredits(amount: Microcredits): string {
  const { sign, whole, parts } = split(amount);
  const decimals = parts.replace(/0+$/, "").padEnd(2, "0");
  return `${sign}${group(whole)}.${decimals}`;
}

/** What an amount in full lacks to six decimals: kept free behind it, the points of a column stand below each other. */
export function padDecimals(shown: string): string {
  return "0".repeat(Math.max(0, 6 - (shown.split(".")[1]?.length ?? 0)));
}

/** For tiles and columns: two decimals, cut and never rounded up, and "<0.01" where that would hide an amount. */
export function showCreditsShort(amount: Microcredits): string {
  const { sign, whole, parts } = split(amount);
  const cents = parts.slice(0, 2);
  if (whole === 0n && cents === "00" && amount !== 0n) return sign ? ">−0.01" : "<0.01";
  return `${sign}${group(whole)}.${cents}`;
}

/** What a person typed, as microcredits; null when it is no amount. */
export function parseCredits(text: string): Microcredits | null {
  const found = /^\s*(\d{1,9})(?:[.,](\d{1,6}))?\s*$/.exec(text.replaceAll(" ", ""));
  if (!found) return null;
  const [, whole = "0", parts = ""] = found;
  return BigInt(whole) * MICROCREDITS_PER_CREDIT + BigInt(parts.padEnd(6, "0"));
}

/** Back to the wire, which takes whole numbers. */
export function toWire(amount: Microcredits): number {
  const value = Number(amount);
  if (!Number.isSafeInteger(value)) throw new Error("this amount is too large to send");
  return value;
}

/** Cash comes in the smallest unit of its currency. */
export function showCash(minor: number, currency: string): string {
  const digits = new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions().maximumFractionDigits ?? 2;
  const text = String(Math.abs(minor)).padStart(digits + 1, "0");
  const whole = group(BigInt(text.slice(0, text.length - digits)));
  const parts = digits ? `.${text.slice(-digits)}` : "";
  return `${minor < 0 ? "−" : ""}${whole}${parts} ${currency}`;
}

/** Only for the length of a bar or the height of a curve, never for a figure. */
export function toPlot(amount: Microcredits): number {
  return Number(amount) / 1e6;
}

function split(amount: Microcredits): { sign: string; whole: bigint; parts: string } {
  const size = amount < 0n ? -amount : amount;
  return {
    sign: amount < 0n ? "−" : "",
    whole: size / MICROCREDITS_PER_CREDIT,
    parts: (size % MICROCREDITS_PER_CREDIT).toString().padStart(6, "0"),
  };
}

function group(whole: bigint): string {
  return whole.toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}
