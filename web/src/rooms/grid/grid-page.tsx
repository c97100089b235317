"use client";
// The front page: the grid as it breathes, for everyone.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import dynamic from "next/dynamic";
import { useCallback, useEffect, useRef, useState } from "react";
import { getLeaderboard, getMesh, getSpots, listPublicJobs, type Counts, type LeaderboardBy, type LeaderboardPeriod } from "@/lib/api/gateway";
import { showCreditsShort } from "@/lib/money";
import { tierColour } from "@/lib/states";
import { countOf, showCount, showDuration, showEnum, showFactor, showRegion, showShare, showTier } from "@/lib/words";
import { Ask, Block, Empty, Rows } from "@/ui/faces";
import { Badge, Card, Choice, LinkButton, Price, ShareBar, Stat, Tier, Time } from "@/ui/parts";
import { useAccount, useLive, usePoll, useProfile } from "@/ui/providers";
import { Table } from "@/ui/table";
import { applyDelta, startMesh, type MeshState } from "./mesh.model";
import type { MeshView as View } from "./mesh-canvas";

// The map and its atlas are the heaviest part: the page is there before them.
const MeshView = dynamic(() => import("./mesh-view"), { ssr: false, loading: () => <Block className="absolute inset-0 h-full" /> });

export function GridPage() {
  const { state, counts, mesh } = useMesh();
  const [view, setView] = useState<View>("map");
  const account = useAccount();
  return (
    <main id="main" className="mx-auto w-full max-w-[1600px] px-4 pt-6 pb-16 sm:px-6 lg:px-8">
      <div className="flex flex-wrap items-end justify-between gap-4">
        <div>
          <h1 className="text-3xl font-semibold tracking-tight sm:text-4xl">One grid of many machines</h1>
          <p className="mt-2 max-w-2xl text-soft">
            Hand in a job and it runs on machines that people lend. Every dot is one of them; those that pulse are at work.
          </p>
        </div>
        <div className="flex min-h-9 flex-wrap gap-2">
          {account === null ? (
            <LinkButton look="main" href="/sign-in/?new=1">
              Create an account
            </LinkButton>
          ) : null}
          <LinkButton href="/join/">Lend this machine</LinkButton>
        </div>
      </div>

      <dl className="mt-6 grid grid-cols-2 gap-x-6 gap-y-4 sm:grid-cols-3 lg:grid-cols-6">
        <Figures counts={counts} />
      </dl>

      <section aria-label="The mesh" className="relative mt-6 overflow-hidden rounded-xl border border-line bg-surface">
        <div className="relative aspect-[3/2] max-h-[70vh] w-full sm:aspect-[2/1]">
          {state ? <MeshView state={state} view={view} /> : null}
          {!state && mesh.error ? (
            <div className="absolute inset-0 grid place-items-center">
              <Ask query={mesh}>{() => null}</Ask>
            </div>
          ) : null}
          <div className="absolute top-3 left-3 z-10">
            <Choice label="View" value={view} options={["map", "graph"] as const} onChange={setView} show={(each) => (each === "map" ? "Map" : "Graph")} />
          </div>
        </div>
        <TierLegend counts={counts} />
      </section>

      <div className="mt-6 grid gap-6 xl:grid-cols-[minmax(0,7fr)_minmax(0,6fr)_minmax(0,6fr)]">
        <RecentJobs />
        <SpotPrices />
        <Leaders />
      </div>
    </main>
  );
}

/** The stream is open before the mesh is loaded, and deltas of that time are kept: nothing is missed in between. */
function useMesh() {
  const poll = usePoll();
  const queries = useQueryClient();
  const mesh = useQuery({ queryKey: ["mesh"], queryFn: getMesh, refetchInterval: poll, staleTime: Infinity });
  const [state, setState] = useState<MeshState | null>(null);
  const [counts, setCounts] = useState<Counts | null>(null);
  const early = useRef<Parameters<typeof applyDelta>[1][]>([]);
  const started = useRef(false);

  useEffect(() => {
    if (!mesh.data) return;
    started.current = true;
    setState(early.current.splice(0).reduce(applyDelta, startMesh(mesh.data)));
    setCounts(mesh.data.counts);
  }, [mesh.data]);

  const hear = useCallback((delta: Parameters<typeof applyDelta>[1]) => {
    if (started.current) setState((before) => (before ? applyDelta(before, delta) : before));
    else early.current.push(delta);
  }, []);
  useLive(
    {
      frame: (frame) => {
        if (frame.mesh) hear(frame.mesh);
        if (frame.counts) setCounts(frame.counts);
        if (frame.counts) void queries.invalidateQueries({ queryKey: ["public-jobs"] });
      },
    },
    { mesh: true },
  );
  return { state, counts, mesh };
}

function Figures({ counts }: { counts: Counts | null }) {
  const figures: [string, number | null, string?][] = [
    ["Nodes online", counts && counts.nodes_online],
    ["Slots", counts && counts.slots],
    ["Slots at work", counts && counts.busy_slots],
    ["Jobs running", counts && counts.jobs_running],
    ["Slices waiting", counts && counts.slices_queued],
    ["Networks training", counts && counts.networks_training],
  ];
  return (
    <>
      {figures.map(([name, value]) => (
        <Stat key={name} name={name} big value={value === null ? <span className="skeleton inline-block h-7 w-14 align-middle" /> : showCount(value)} />
      ))}
    </>
  );
}

function TierLegend({ counts }: { counts: Counts | null }) {
  const tiers = Object.entries(counts?.tiers ?? {}).sort(([, a], [, b]) => b.slots - a.slots);
  return (
    <div className="grid min-h-20 gap-3 border-t border-line px-4 py-3 sm:px-5">
      <ShareBar label="Slots by tier" parts={tiers.map(([tier, count]) => ({ name: showTier(tier), value: count.slots, colour: `var(${tierColour(tier)})` }))} />
      <ul className="flex flex-wrap gap-x-5 gap-y-1 text-sm">
        {tiers.map(([tier, count]) => (
          <li key={tier} className="figure">
            <Tier tier={tier} /> <span className="text-soft">{countOf(count.slots, "slot")}, {showCount(count.busy)} at work</span>
          </li>
        ))}
        {counts && !tiers.length ? <li className="text-soft">No node is online yet. The first one could be yours.</li> : null}
      </ul>
    </div>
  );
}

function RecentJobs() {
  const poll = usePoll();
  const jobs = useQuery({ queryKey: ["public-jobs"], queryFn: () => listPublicJobs(10), refetchInterval: poll });
  return (
    <Card title="Recent jobs" note="titles only with consent" flush>
      <Ask query={jobs} isEmpty={(page) => !page.jobs.length} empty={<Empty title="No jobs yet" action={<LinkButton href="/submit/">Submit the first</LinkButton>} />}>
        {(page) => (
          <Table
            label="Recent jobs"
            rows={page.jobs}
            keyOf={(job) => job.id}
            columns={[
              { name: "Job", cell: (job) => <span className="block max-w-48 truncate">{job.title ?? <span className="text-soft">{showEnum(job.kind)} job</span>}</span> },
              { name: "State", cell: (job) => <Badge state={job.state} /> },
              { name: "Slices", right: true, cell: (job) => `${showCount(job.succeeded)} / ${showCount(job.slice_count)}` },
              { name: "Since", right: true, wide: true, cell: (job) => <Time at={job.created_at} /> },
            ]}
          />
        )}
      </Ask>
    </Card>
  );
}

function SpotPrices() {
  const poll = usePoll();
  const spots = useQuery({ queryKey: ["market", "spot"], queryFn: getSpots, refetchInterval: poll });
  return (
    <Card title="Spot prices" note="per hour of a slot" flush action={<LinkButton look="quiet" href="/market/">Market</LinkButton>}>
      <Ask query={spots} isEmpty={(page) => !page.spots.length} empty={<Empty title="No prices yet">The market sets them with its first tick.</Empty>}>
        {(page) => (
          <Table
            label="Spot prices"
            rows={page.spots.slice(0, 8)}
            keyOf={(spot) => `${spot.tier} ${spot.region}`}
            columns={[
              { name: "Tier", cell: (spot) => <Tier tier={spot.tier} /> },
              { name: "Region", cell: (spot) => showRegion(spot.region) },
              { name: "Spot", right: true, cell: (spot) => <Price of={spot.spot_microcredits_per_hour} /> },
              { name: "Surge", right: true, wide: true, cell: (spot) => showFactor(spot.surge_ppm) },
            ]}
          />
        )}
      </Ask>
    </Card>
  );
}

const BY: readonly LeaderboardBy[] = ["earned", "hours", "verified_slices", "reliability"];
const BY_NAMES: Record<LeaderboardBy, string> = { earned: "Earned", hours: "Hours", verified_slices: "Slices", reliability: "Reliability" };
const PERIOD: LeaderboardPeriod = "month";

function Leaders() {
  const [by, setBy] = useState<LeaderboardBy>("earned");
  const me = useProfile();
  const board = useQuery({ queryKey: ["leaderboard", by], queryFn: () => getLeaderboard({ by, period: PERIOD, limit: 10 }), refetchInterval: 30_000 });
  return (
    <Card title="Leaderboard" note="this month" flush>
      <div className="px-4 pb-2 sm:px-5">
        <Choice label="Ranked by" value={by} options={BY} onChange={setBy} show={(each) => BY_NAMES[each]} />
      </div>
      <Ask query={board} loading={<Rows count={6} />} isEmpty={(found) => !found.rows.length} empty={<Empty title="Nobody is ranked yet">Work for oneself does not count.</Empty>}>
        {(found) => (
          <Table
            label="Leaderboard"
            rows={found.rows}
            keyOf={(row) => String(row.rank) + row.pseudonym}
            columns={[
              { name: "#", cell: (row) => row.rank },
              { name: "Owner", cell: (row) => <span className={row.pseudonym === me?.pseudonym ? "font-semibold text-accent" : ""}>{row.pseudonym}{row.pseudonym === me?.pseudonym ? " (you)" : ""}</span> },
              { name: BY_NAMES[by], right: true, cell: (row) => showRank(by, row.value) },
            ]}
          />
        )}
      </Ask>
    </Card>
  );
}

function showRank(by: LeaderboardBy, value: number): string {
  if (by === "earned") return `${showCreditsShort(BigInt(value))} cr`;
  if (by === "hours") return showDuration(value);
  return by === "reliability" ? showShare(value) : showCount(value);
}
