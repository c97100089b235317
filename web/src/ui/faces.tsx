"use client";
// The four faces of everything that is asked for: it comes, it is empty, it failed, it is there.

import type { UseQueryResult } from "@tanstack/react-query";
import { CloudOff, Inbox } from "lucide-react";
import type { ReactNode } from "react";
import { HubError } from "@/lib/api/client";
import { Button, Card, LinkButton } from "./parts";
import { useAccount } from "./providers";

export function Rows({ count = 5, height = "h-9" }: { count?: number; height?: string }) {
  return (
    <div role="status" aria-label="Loading" className="grid gap-2 p-4 sm:p-5">
      {Array.from({ length: count }, (_, index) => (
        <div key={index} className={`skeleton ${height}`} />
      ))}
    </div>
  );
}

export function Block({ className = "h-40" }: { className?: string }) {
  return <div role="status" aria-label="Loading" className={`skeleton w-full ${className}`} />;
}

export function Empty({ title, children, action }: { title: string; children?: ReactNode; action?: ReactNode }) {
  return (
    <div className="grid justify-items-center gap-2 px-6 py-10 text-center">
      <Inbox aria-hidden className="text-soft" size={28} strokeWidth={1.5} />
      <p className="font-medium">{title}</p>
      {children ? <div className="max-w-md text-sm text-soft">{children}</div> : null}
      {action ? <div className="mt-2">{action}</div> : null}
    </div>
  );
}

export function Problem({ error, onRetry }: { error: Error; onRetry?: () => void }) {
  if (error instanceof HubError && error.status === 401) return <SignInFirst />;
  return (
    <div role="alert" className="grid justify-items-center gap-2 px-6 py-10 text-center">
      <CloudOff aria-hidden className="text-bad" size={28} strokeWidth={1.5} />
      <p className="max-w-md">{error.message}</p>
      {onRetry ? (
        <Button look="plain" onClick={onRetry}>
          Try again
        </Button>
      ) : null}
    </div>
  );
}

export function SignInFirst() {
  return (
    <Empty
      title="Sign in to see this"
      action={
        <LinkButton look="main" href="/sign-in/">
          Sign in
        </LinkButton>
      }
    >
      What is in here belongs to an account.
    </Empty>
  );
}

/** Shows the answer, or the face that fits. */
export function Ask<T>({ query, loading, isEmpty, empty, children }: { query: UseQueryResult<T, Error>; loading?: ReactNode; isEmpty?: (data: T) => boolean; empty?: ReactNode; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) {
    if (empty && isEmpty?.(query.data)) return <>{empty}</>;
    return <>{children(query.data)}</>;
  }
  if (query.error) return <Problem error={query.error} onRetry={() => void query.refetch()} />;
  return <>{loading ?? <Rows />}</>;
}

/** For rooms of people with an account: nothing is asked before it is known who is here. */
export function Room({ children }: { children: ReactNode }) {
  const account = useAccount();
  if (account === null) return <Card><SignInFirst /></Card>;
  if (account === undefined) return <Rows />;
  return <>{children}</>;
}
