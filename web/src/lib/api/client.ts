// The one place that speaks HTTP with the hub. Types are generated from the hub's OpenAPI document.

import createClient from "openapi-fetch";
import type { paths } from "./schema";
import { fromWire, type FromWire } from "./wire";

const CALL_SECONDS_MAX = 30;

/** Relative to the page: the site is served by the hub, or by a proxy in front of it. */
export const client = createClient<paths>({ baseUrl: "", fetch: fetchInTime });

/** A refusal in the hub's own words; `code` is stable. */
export class HubError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status: number,
    readonly retryable: boolean,
  ) {
    super(message);
    this.name = "HubError";
  }
}

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The answer in the site's own types, or a HubError. */
export async function read<T>(asked: Promise<Answer<T>>): Promise<FromWire<T>> {
  let answer: Answer<T>;
  try {
    answer = await asked;
  } catch {
    throw new HubError("unreachable", "The hub does not answer. This page tries again by itself.", 0, true);
  }
  if (!answer.response.ok) throw toHubError(answer.error, answer.response.status);
  return fromWire(answer.data as T);
}

/** Bytes of a file, for a preview; never more than asked for. */
export async function readBytes(path: string, bytesMax: number): Promise<Blob> {
  const response = await fetchInTime(new Request(path));
  if (!response.ok) throw toHubError(await response.json().catch(() => null), response.status);
  const bytes = await response.blob();
  if (bytes.size > bytesMax) throw new HubError("too_large", "This file is too large for a preview.", 413, false);
  return bytes;
}

function toHubError(body: unknown, status: number): HubError {
  const told = (body ?? {}) as { code?: unknown; message?: unknown; retryable?: unknown };
  return new HubError(
    typeof told.code === "string" ? told.code : `http_${status}`,
    typeof told.message === "string" ? told.message : `The hub answered ${status}.`,
    status,
    told.retryable === true || status >= 500,
  );
}

function fetchInTime(request: Request): Promise<Response> {
  return fetch(request, { signal: AbortSignal.timeout(CALL_SECONDS_MAX * 1000), credentials: "same-origin" });
}
