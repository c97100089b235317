"use client";
// What every page stands on: the cache of answers, who is signed in, the live stream, the colours, the clock.

import { QueryClient, QueryClientProvider, useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, useCallback, useContext, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { HubError } from "@/lib/api/client";
import { getAccount, getHub, getProfile, type Account, type Job, type Node, type Profile } from "@/lib/api/gateway";
import { LiveStream, type LiveFrame, type LiveListener, type LiveStatus, type LiveWish } from "@/lib/live";

const FRESH_SECONDS = 10;
const AWAY_POLL_SECONDS = 5;

interface Live {
  status: LiveStatus;
  listen: (listener: LiveListener) => () => void;
  want: (wish: LiveWish) => () => void;
}

const LiveContext = createContext<Live>({ status: "connecting", listen: () => () => undefined, want: () => () => undefined });
const NowContext = createContext<number>(0);

export function Providers({ children }: { children: ReactNode }) {
  const [queries] = useState(
    () =>
      new QueryClient({
        defaultOptions: {
          queries: { staleTime: FRESH_SECONDS * 1000, retry: shouldRetry, refetchOnWindowFocus: true },
        },
      }),
  );
  return (
    <QueryClientProvider client={queries}>
      <LiveProvider>
        <NowProvider>{children}</NowProvider>
      </LiveProvider>
    </QueryClientProvider>
  );
}

function shouldRetry(count: number, error: Error): boolean {
  return count < 3 && error instanceof HubError && error.retryable;
}

/** `null`: nobody is signed in. `undefined`: not known yet. */
export function useAccount(): Account | null | undefined {
  const { data } = useQuery({ queryKey: ["me"], queryFn: findAccount, staleTime: 60_000 });
  return data;
}

async function findAccount(): Promise<Account | null> {
  try {
    return await getAccount();
  } catch (error) {
    if (error instanceof HubError && error.status === 401) return null;
    throw error;
  }
}

/** How others see whoever is signed in. */
export function useProfile(): Profile | undefined {
  const account = useAccount();
  const { data } = useQuery({ queryKey: ["profile"], queryFn: getProfile, enabled: Boolean(account), staleTime: 60_000 });
  return data;
}

export function useHub() {
  return useQuery({ queryKey: ["hub"], queryFn: getHub, staleTime: Infinity });
}

function LiveProvider({ children }: { children: ReactNode }) {
  const account = useAccount();
  const queries = useQueryClient();
  const [status, setStatus] = useState<LiveStatus>("connecting");
  const [wishes, setWishes] = useState<LiveWish[]>([]);
  const listeners = useRef(new Set<LiveListener>());
  const merged = mergeWishes(wishes);
  const { mesh, everyone, run } = merged;
  const known = account !== undefined;
  const accountId = account?.id;

  useEffect(() => {
    if (!known) return;
    const stream = new LiveStream(account ?? null, { mesh, everyone, run });
    const own: LiveListener = {
      status: setStatus,
      frame: (frame) => {
        applyFrame(queries, frame);
        for (const listener of listeners.current) listener.frame?.(frame);
      },
      reload: () => {
        void queries.invalidateQueries();
        for (const listener of listeners.current) listener.reload?.();
      },
    };
    const leave = stream.listen(own);
    const stop = stream.start();
    return () => {
      leave();
      stop();
    };
    // The stream belongs to whoever is signed in, not to each fresh answer about them.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [known, accountId, mesh, everyone, run, queries]);

  const listen = useCallback((listener: LiveListener) => {
    listeners.current.add(listener);
    return () => {
      listeners.current.delete(listener);
    };
  }, []);
  const want = useCallback((wish: LiveWish) => {
    setWishes((before) => [...before, wish]);
    return () => setWishes((before) => before.filter((each) => each !== wish));
  }, []);
  const live = useMemo(() => ({ status, listen, want }), [status, listen, want]);
  return <LiveContext.Provider value={live}>{children}</LiveContext.Provider>;
}

function mergeWishes(wishes: LiveWish[]): LiveWish {
  return {
    mesh: wishes.some((wish) => wish.mesh),
    everyone: wishes.some((wish) => wish.everyone),
    run: wishes.find((wish) => wish.run)?.run,
  };
}

/** Whole rows replace what is cached; what hangs on a job or node is asked for again. */
function applyFrame(queries: QueryClient, frame: LiveFrame): void {
  for (const { job } of frame.jobs) {
    queries.setQueryData<Job>(["job", job.id], job);
    void queries.invalidateQueries({ queryKey: ["job-part", job.id] });
  }
  for (const { node } of frame.nodes) {
    queries.setQueryData<Node>(["node", node.id], node);
    void queries.invalidateQueries({ queryKey: ["node-part", node.id] });
  }
  if (frame.jobs.length) void queries.invalidateQueries({ queryKey: ["jobs"] });
  if (frame.nodes.length) void queries.invalidateQueries({ queryKey: ["nodes"] });
  if (frame.credits) void queries.invalidateQueries({ queryKey: ["credits"] });
  if (frame.prices) void queries.invalidateQueries({ queryKey: ["market"] });
}

export function useLiveStatus(): LiveStatus {
  return useContext(LiveContext).status;
}

/** Hears every frame while the component is there. */
export function useLive(listener: LiveListener, wish: LiveWish = {}): void {
  const { listen, want } = useContext(LiveContext);
  const current = useRef(listener);
  useEffect(() => {
    current.current = listener;
  });
  const { mesh, everyone, run } = wish;
  useEffect(() => {
    const leave = listen({
      frame: (frame) => current.current.frame?.(frame),
      reload: () => current.current.reload?.(),
    });
    const drop = mesh || everyone || run ? want({ mesh, everyone, run }) : undefined;
    return () => {
      leave();
      drop?.();
    };
  }, [listen, want, mesh, everyone, run]);
}

/** Milliseconds between questions while the stream is away; while it is there, it tells by itself. */
export function usePoll(): number | false {
  return useLiveStatus() === "live" ? false : AWAY_POLL_SECONDS * 1000;
}

/** A clock for the whole page, so that a hundred "12 s ago" tick together. 0 until the page is alive. */
function NowProvider({ children }: { children: ReactNode }) {
  const [now, setNow] = useState(0);
  useEffect(() => {
    setNow(Date.now());
    const timer = window.setInterval(() => setNow(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  return <NowContext.Provider value={now}>{children}</NowContext.Provider>;
}

export function useNow(): number {
  return useContext(NowContext);
}
