// The live stream: one per tab, public or one's own. It resumes where it was, says when it is old, and heals itself.

import { fromWire } from "./api/wire";
import type { Account, Counts, Job, MeshArc, MeshEdge, MeshNode, Node, RunLine, Spot } from "./api/gateway";

export type LiveStatus = "connecting" | "live" | "old" | "away";

export interface MeshDelta {
  nodes: MeshNode[];
  gone: string[];
  arcs: MeshArc[];
  ended: string[];
  edges: MeshEdge[] | null;
}

export interface LiveEvent {
  id: number;
  at: Date;
  kind: string;
  job_id?: string | null;
  node_id?: string | null;
  body: unknown;
}

export interface LiveFrame {
  at: Date;
  version: number;
  stale: boolean;
  look_seconds: number;
  truncated: boolean;
  events: LiveEvent[];
  jobs: { version: number; job: Job }[];
  nodes: { version: number; node: Node }[];
  credits: boolean;
  runs: { run_id: string; lines: RunLine[] }[];
  mesh: MeshDelta | null;
  counts: Counts | null;
  prices: Spot[] | null;
}

export interface LiveWish {
  mesh?: boolean;
  everyone?: boolean;
  run?: string;
}

export interface LiveListener {
  frame?: (frame: LiveFrame) => void;
  /** What is on the screen may be old: load it again. */
  reload?: () => void;
  status?: (status: LiveStatus) => void;
}

const SILENCE_SECONDS_MAX = 15;
const LOOK_SECONDS_MAX = 5;
const HIDDEN_SECONDS_MAX = 30;
const RETRY_SECONDS = [1, 2, 4, 8, 15];

/** A frame leaves out what has not changed. */
const UNCHANGED = {
  stale: false,
  look_seconds: 0,
  truncated: false,
  events: [],
  jobs: [],
  nodes: [],
  credits: false,
  runs: [],
  mesh: null,
  counts: null,
  prices: null,
};

interface Told {
  resumed?: boolean;
  stale?: boolean;
  look_seconds?: number;
}

/** Holds one EventSource and replaces it when it dies, when the wish changes, and when the tab comes back. */
export class LiveStream {
  private source: EventSource | null = null;
  private listeners = new Set<LiveListener>();
  private lastEventId = "";
  private failures = 0;
  private silence: number | undefined;
  private retry: number | undefined;
  private hidden: number | undefined;
  private status: LiveStatus = "connecting";
  private connected = false;

  constructor(
    private account: Account | null,
    private wish: LiveWish,
  ) {}

  start(): () => void {
    document.addEventListener("visibilitychange", this.onVisibility);
    window.addEventListener("online", this.onOnline);
    this.open();
    return () => {
      document.removeEventListener("visibilitychange", this.onVisibility);
      window.removeEventListener("online", this.onOnline);
      this.close();
    };
  }

  listen(listener: LiveListener): () => void {
    this.listeners.add(listener);
    listener.status?.(this.status);
    return () => this.listeners.delete(listener);
  }

  private url(): string {
    const query = new URLSearchParams();
    if (this.account) {
      if (this.wish.mesh) query.set("mesh", "true");
      if (this.wish.everyone) query.set("everyone", "true");
      if (this.wish.run) query.set("run", this.wish.run);
    }
    if (this.lastEventId) query.set("last_event_id", this.lastEventId);
    const text = query.toString();
    return (this.account ? "/v1/live" : "/v1/public/live") + (text ? `?${text}` : "");
  }

  private open(): void {
    this.close();
    const source = new EventSource(this.url());
    this.source = source;
    for (const name of ["hello", "delta", "pulse", "reset", "bye"]) {
      source.addEventListener(name, (message) => this.hear(name, message as MessageEvent<string>));
    }
    source.onerror = () => this.fail();
    this.watchSilence();
  }

  private close(): void {
    this.source?.close();
    this.source = null;
    window.clearTimeout(this.silence);
    window.clearTimeout(this.retry);
  }

  private hear(name: string, message: MessageEvent<string>): void {
    if (message.lastEventId) this.lastEventId = message.lastEventId;
    this.failures = 0;
    this.watchSilence();
    const told = JSON.parse(message.data || "{}") as Told;
    if (name === "bye") return this.fail();
    if (name === "reset" || (name === "hello" && told.resumed !== true && this.connected)) this.askReload();
    this.connected = true;
    this.tell(told.stale || (told.look_seconds ?? 0) > LOOK_SECONDS_MAX ? "old" : "live");
    if (name === "delta") this.hearFrame({ ...UNCHANGED, ...(fromWire(told) as unknown as LiveFrame) });
  }

  private hearFrame(frame: LiveFrame): void {
    for (const listener of this.listeners) listener.frame?.(frame);
    if (frame.truncated) this.askReload();
  }

  private askReload(): void {
    for (const listener of this.listeners) listener.reload?.();
  }

  private fail(): void {
    this.close();
    this.tell("away");
    const wait = RETRY_SECONDS[Math.min(this.failures, RETRY_SECONDS.length - 1)] ?? 15;
    this.failures += 1;
    this.retry = window.setTimeout(() => this.open(), wait * 1000);
  }

  private watchSilence(): void {
    window.clearTimeout(this.silence);
    this.silence = window.setTimeout(() => this.fail(), SILENCE_SECONDS_MAX * 1000);
  }

  private tell(status: LiveStatus): void {
    if (status === this.status) return;
    this.status = status;
    for (const listener of this.listeners) listener.status?.(status);
  }

  // A browser opens few connections to one address: a tab that nobody looks at gives its stream back.
  private onVisibility = (): void => {
    window.clearTimeout(this.hidden);
    if (document.hidden) this.hidden = window.setTimeout(() => this.close(), HIDDEN_SECONDS_MAX * 1000);
    else if (this.source === null) this.open();
  };

  private onOnline = (): void => {
    if (this.status !== "live") this.open();
  };
}
