"use client";
// Ids of detail pages stand in the query: a static site has no pages of their own for them.

import { useSearchParams } from "next/navigation";

const ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** The id of the page, or null when the address has none that could be one. */
export function useIdParam(name = "id"): string | null {
  const value = useSearchParams().get(name);
  return value && ID.test(value) ? value : null;
}
