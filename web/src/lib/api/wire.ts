// From the wire's types to the site's: amounts become bigint, times become Date. By name, as the API names them:
// whatever has "microcredits" in its name is money, whatever ends in "_at" or "_since" (or is "at", "since", "until") is a moment.

import { toMicrocredits, type Microcredits } from "../money.ts";

type MomentKey = `${string}_at` | `${string}_since` | "at" | "since" | "until";
type MoneyKey = `${string}microcredits${string}`;
/** What strangers may have put in freely is passed on as it is. */
type OpaqueKey = "body" | "details" | "env";

type Money<T> = T extends number | string ? Microcredits : T extends object ? { [K in keyof T]: Money<T[K]> } : T;
type Moment<T> = T extends string ? Date : T;

export type FromWire<T> = T extends (infer Item)[]
  ? FromWire<Item>[]
  : T extends object
    ? {
        [K in keyof T]: K extends OpaqueKey
          ? T[K]
          : K extends MoneyKey
            ? Money<T[K]>
            : K extends MomentKey
              ? Moment<T[K]>
              : FromWire<T[K]>;
      }
    : T;

const MOMENT = /(?:_at|_since|^at|^since|^until)$/;
const OPAQUE = new Set(["body", "details", "env"]);

export function fromWire<T>(value: T): FromWire<T> {
  return convert(value) as FromWire<T>;
}

function convert(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(convert);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, convertNamed(name, part)]));
}

function convertNamed(name: string, part: unknown): unknown {
  if (OPAQUE.has(name)) return part;
  if (name.includes("microcredits")) return convertMoney(part);
  if (MOMENT.test(name) && typeof part === "string") return new Date(part);
  return convert(part);
}

function convertMoney(part: unknown): unknown {
  if (typeof part === "number" || typeof part === "string") return toMicrocredits(part);
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([name, each]) => [name, convertMoney(each)]));
}
