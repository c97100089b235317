"use client";
// Short words about what was just done. Said aloud to those who listen.

import { useSyncExternalStore } from "react";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

const SHOWN_SECONDS = 6;
// What went wrong is longer, and has to be acted on.
const COMPLAINT_SECONDS = 15;
const NONE: Toast[] = [];
let toasts: Toast[] = NONE;
let number = 0;
const watchers = new Set<() => void>();

export function say(text: string): void {
  put({ id: ++number, text, bad: false });
}

export function complain(error: unknown): void {
  put({ id: ++number, text: error instanceof Error ? error.message : "That did not work.", bad: true });
}

function put(toast: Toast): void {
  change([...toasts.slice(-3), toast]);
  window.setTimeout(() => change(toasts.filter((each) => each.id !== toast.id)), (toast.bad ? COMPLAINT_SECONDS : SHOWN_SECONDS) * 1000);
}

function change(next: Toast[]): void {
  toasts = next;
  for (const watcher of watchers) watcher();
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

export function Toasts() {
  const shown = useSyncExternalStore(watch, () => toasts, () => NONE);
  return (
    <div role="status" aria-live="polite" className="pointer-events-none fixed inset-x-4 bottom-4 z-40 grid justify-items-center gap-2">
      {shown.map((toast) => (
        <p key={toast.id} className={`pointer-events-auto max-w-xl rounded-lg border bg-surface px-4 py-2.5 shadow-lg ${toast.bad ? "border-bad text-bad" : "border-line"}`}>
          {toast.text}
        </p>
      ))}
    </div>
  );
}
