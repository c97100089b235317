"use client";
// What surrounds every page: the way around, who is here, whether what is shown is live.

import { useQueryClient } from "@tanstack/react-query";
import { LogOut, Menu, Moon, Plus, Sun, X } from "lucide-react";
import Link from "next/link";
import { usePathname } from "next/navigation";
import { useEffect, useState, type ReactNode } from "react";
import { signOut } from "@/lib/api/gateway";
import type { LiveStatus } from "@/lib/live";
import { Button, LinkButton } from "./parts";
import { useAccount, useHub, useLiveStatus } from "./providers";
import { Toasts } from "./toasts";

const ROOMS = [
  ["/", "Grid"],
  ["/jobs/", "Jobs"],
  ["/nodes/", "Nodes"],
  ["/market/", "Market"],
  ["/networks/", "Networks"],
  ["/wallet/", "Wallet"],
  ["/join/", "Join"],
] as const;
const DETAIL_OF: Record<string, string> = { "/job/": "/jobs/", "/node/": "/nodes/", "/run/": "/networks/" };

export function Shell({ children }: { children: ReactNode }) {
  const path = usePathname();
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [path]);
  return (
    <>
      <a href="#main" className="sr-only rounded-lg bg-accent px-3 py-2 text-accent-ink focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:z-50">
        Skip to content
      </a>
      <header className="sticky top-0 z-30 border-b border-line bg-surface">
        <div className="mx-auto flex h-14 max-w-[1600px] items-center gap-2 px-4 sm:px-6 lg:px-8">
          <Link href="/" className="mr-2 flex items-center gap-2 font-semibold tracking-tight">
            <img src="/icon.svg" alt="" width={24} height={24} />
            ComputePool
          </Link>
          <DemoMark />
          <nav aria-label="Rooms" className="hidden items-center gap-0.5 xl:flex">
            <RoomLinks path={path} />
          </nav>
          <div className="ml-auto flex items-center gap-1.5">
            <LiveMark />
            <ThemeButton />
            <LinkButton href="/submit/" look="main" className="max-sm:hidden">
              <Plus size={16} aria-hidden />
              Submit a job
            </LinkButton>
            <AccountCorner />
            <button type="button" className="grid size-9 place-items-center rounded-lg text-soft hover:bg-raised xl:hidden" aria-expanded={open} aria-controls="rooms" aria-label={open ? "Close menu" : "Open menu"} onClick={() => setOpen(!open)}>
              {open ? <X size={20} aria-hidden /> : <Menu size={20} aria-hidden />}
            </button>
          </div>
        </div>
        {open ? (
          <nav id="rooms" aria-label="All rooms" className="grid gap-1 border-t border-line p-3 sm:grid-cols-2 xl:hidden">
            <RoomLinks path={path} />
            <RoomLink href="/submit/" name="Submit a job" path={path} />
            <AccountLinks path={path} />
          </nav>
        ) : null}
      </header>
      {children}
      <Toasts />
    </>
  );
}

function RoomLinks({ path }: { path: string }) {
  return (
    <>
      {ROOMS.map(([href, name]) => (
        <RoomLink key={href} href={href} name={name} path={path} />
      ))}
    </>
  );
}

function RoomLink({ href, name, path }: { href: string; name: string; path: string }) {
  const here = (DETAIL_OF[path] ?? path) === href;
  return (
    <Link href={href} aria-current={here ? "page" : undefined} className={`flex min-h-9 items-center rounded-lg px-3 text-sm ${here ? "bg-raised font-medium text-ink" : "text-soft hover:bg-raised hover:text-ink"}`}>
      {name}
    </Link>
  );
}

function AccountLinks({ path }: { path: string }) {
  const account = useAccount();
  if (!account) return null;
  return (
    <>
      <RoomLink href="/keys/" name="Account and keys" path={path} />
      {account.roles.includes("operator") ? <RoomLink href="/operator/" name="Operator" path={path} /> : null}
    </>
  );
}

function AccountCorner() {
  const account = useAccount();
  const path = usePathname();
  const queries = useQueryClient();
  const leave = async () => {
    await signOut().catch(() => undefined);
    queries.clear();
    window.location.assign("/");
  };
  // The place is kept while it is not known who is here, so that nothing moves when it is.
  if (account === undefined) return <div className="skeleton h-9 w-20" />;
  if (account === null) {
    return (
      <LinkButton href="/sign-in/" className="min-w-20">
        Sign in
      </LinkButton>
    );
  }
  return (
    <details className="group relative" onBlur={(event) => !event.currentTarget.contains(event.relatedTarget) && (event.currentTarget.open = false)}>
      <summary className="flex min-h-9 min-w-20 list-none items-center justify-center gap-2 rounded-lg border border-line px-3 text-sm font-medium hover:bg-raised [&::-webkit-details-marker]:hidden">
        <span className="max-w-32 truncate">{account.name || account.email}</span>
      </summary>
      <div className="absolute right-0 mt-1 grid w-60 gap-1 rounded-xl border border-line bg-surface p-2 shadow-lg">
        <p className="truncate px-3 pt-1 text-sm">{account.email}</p>
        <p className="px-3 pb-2 text-sm text-soft">{account.roles.join(", ")}</p>
        <AccountLinks path={path} />
        <Button look="quiet" className="justify-start" onClick={() => void leave()}>
          <LogOut size={16} aria-hidden />
          Sign out
        </Button>
      </div>
    </details>
  );
}

function DemoMark() {
  const hub = useHub();
  return hub.data?.demo ? (
    <span className="rounded-full border border-line px-2 text-xs text-soft max-sm:hidden" title="Machines of this hub are played, and so is its money.">
      demo
    </span>
  ) : null;
}

const LIVE_WORDS: Record<LiveStatus, [string, string, string]> = {
  connecting: ["Connecting", "text-idle", "Opening the live stream"],
  live: ["Live", "text-ok", "What you see follows the grid within a second"],
  old: ["Delayed", "text-wait", "The hub's feed is behind; it catches up by itself"],
  away: ["Reconnecting", "text-bad", "The live stream is away; this page asks again every few seconds until it is back"],
};

export function LiveMark() {
  const status = useLiveStatus();
  const [word, colour, title] = LIVE_WORDS[status];
  return (
    <span role="status" data-live={status} title={title} className={`flex items-center justify-end gap-1.5 px-1 text-sm sm:min-w-28 ${colour}`}>
      <span aria-hidden className={`size-2 rounded-full bg-current ${status === "live" ? "alive" : ""}`} />
      <span className="max-sm:sr-only">{word}</span>
    </span>
  );
}

function ThemeButton() {
  const flip = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // Without storage the choice lasts as long as the page.
    }
    window.dispatchEvent(new Event("themechange"));
  };
  return (
    <button type="button" onClick={flip} aria-label="Light or dark" className="grid size-9 place-items-center rounded-lg text-soft hover:bg-raised hover:text-ink">
      <Sun size={18} aria-hidden className="dark-only" />
      <Moon size={18} aria-hidden className="light-only" />
    </button>
  );
}
