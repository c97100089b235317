"use client";
// Long lists come a page at a time.

import type { InfiniteData, UseInfiniteQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Problem, Rows } from "./faces";
import { Button } from "./parts";

export function Paged<P, T>({ query, itemsOf, empty, loading, children }: { query: UseInfiniteQueryResult<InfiniteData<P>, Error>; itemsOf: (page: P) => T[]; empty: ReactNode; loading?: ReactNode; children: (items: T[]) => ReactNode }) {
  if (!query.data) {
    return query.error ? <Problem error={query.error} onRetry={() => void query.refetch()} /> : <>{loading ?? <Rows />}</>;
  }
  const items = query.data.pages.flatMap(itemsOf);
  if (!items.length) return <>{empty}</>;
  return (
    <>
      {children(items)}
      {query.hasNextPage ? (
        <div className="grid place-items-center p-3">
          <Button look="quiet" disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
            Show more
          </Button>
        </div>
      ) : null}
    </>
  );
}
