"use client";
// One job: how far it is, where it runs, what it says, what it made, what it cost, and why.

import { useMutation, useQuery } from "@tanstack/react-query";
import dynamic from "next/dynamic";
import { useState } from "react";
import { cancelJob, getJob, type Job } from "@/lib/api/gateway";
import { countOf, showBytes, showCount, showDuration, showEnum, showId, showTier } from "@/lib/words";
import { Confirm } from "@/ui/confirm";
import { Ask, Block, Empty, Room } from "@/ui/faces";
import { Amount, Badge, Card, LinkButton, Page, Price, Stat, Time } from "@/ui/parts";
import { usePoll } from "@/ui/providers";
import { complain, say } from "@/ui/toasts";
import { useIdParam } from "@/ui/use-query-param";
import { Attempts } from "./attempts";
import { HeatStrip } from "./heat-strip";
import { Why } from "./why";

const Logs = dynamic(() => import("./logs"), { ssr: false, loading: () => <Block className="h-80" /> });
const Files = dynamic(() => import("./files"), { ssr: false, loading: () => <Block className="h-24" /> });
const Cost = dynamic(() => import("./cost"), { ssr: false, loading: () => <Block className="h-40" /> });

const ENDED = new Set(["succeeded", "failed", "cancelled"]);

export function JobPage() {
  const id = useIdParam();
  if (!id) {
    return (
      <Page title="Job">
        <Empty title="No such job" action={<LinkButton href="/jobs/">All jobs</LinkButton>} />
      </Page>
    );
  }
  return (
    <Room>
      <Found id={id} />
    </Room>
  );
}

function Found({ id }: { id: string }) {
  const poll = usePoll();
  const job = useQuery({ queryKey: ["job", id], queryFn: () => getJob(id), refetchInterval: poll });
  if (job.data) return <Detail job={job.data} />;
  return (
    <Page title="Job">
      <Card flush>
        <Ask query={job}>{() => null}</Ask>
      </Card>
    </Page>
  );
}

function Detail({ job }: { job: Job }) {
  const [slice, setSlice] = useState(0);
  const ended = ENDED.has(job.state);
  const cancel = useMutation({ mutationFn: () => cancelJob(job.id), onSuccess: () => say("Cancelled. What ran is stopped within seconds."), onError: complain });
  return (
    <Page
      title={job.name || "unnamed"}
      lead={
        <span className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <Badge state={job.state} />
          <span title={job.id}>{showId(job.id)}</span>
          <span>{showEnum(job.kind)}</span>
          <span>
            submitted <Time at={job.created_at} />
          </span>
        </span>
      }
      actions={
        <>
          <LinkButton href={`/submit/?from=${job.id}`}>Run again</LinkButton>
          {ended ? null : (
            <Confirm trigger="Cancel" title="Cancel this job?" action="Cancel the job" disabled={cancel.isPending} onConfirm={() => cancel.mutate()}>
              What waits is never run, and what runs is stopped. Slices that are done stay done and paid.
            </Confirm>
          )}
        </>
      }
    >
      <div className="grid gap-6">
        <Card>
          <dl className="grid grid-cols-2 gap-4 sm:grid-cols-3 lg:grid-cols-6">
            <Stat name="Done" value={showCount(job.counts.succeeded)} unit={`of ${showCount(job.slice_count)}`} />
            <Stat name="Running" value={showCount(job.counts.running + job.counts.leased)} />
            <Stat name="Waiting" value={showCount(job.counts.queued)} />
            <Stat name="Failed" value={showCount(job.counts.failed)} />
            <Stat name={ended ? "Cost" : "Cost so far"} value={<Amount of={job.charged_microcredits} />} />
            <Stat name={ended ? "Took" : "Set aside"} value={ended ? <Took job={job} /> : <Amount of={job.held_microcredits} />} />
          </dl>
          <div className="mt-5">
            <HeatStrip job={job} chosen={slice} onChoose={setSlice} />
          </div>
        </Card>
        <div className="grid gap-6 xl:grid-cols-2">
          <Logs job={job} slice={slice} onSlice={setSlice} ended={ended} />
          <Why job={job} slice={slice} />
        </div>
        <Attempts job={job} onSlice={setSlice} />
        <Files job={job} />
        <div className="grid gap-6 xl:grid-cols-2">
          <Cost job={job} />
          <Wishes job={job} />
        </div>
      </div>
    </Page>
  );
}

function Took({ job }: { job: Job }) {
  if (!job.finished_at) return <>–</>;
  return <>{showDuration((job.finished_at.getTime() - job.created_at.getTime()) / 1000)}</>;
}

function Wishes({ job }: { job: Job }) {
  const { requirements: asked } = job;
  const rows: [string, React.ReactNode][] = [
    ["Machine", asked.vram_bytes ? `a GPU with ${showBytes(asked.vram_bytes)} of memory or more` : asked.gpu ? "any GPU" : "any, with or without a GPU"],
    ["Cores, RAM, disk", `${asked.cores}, ${showBytes(asked.ram_bytes)}, ${showBytes(asked.disk_bytes)}`],
    ["Tiers", asked.tiers.length ? asked.tiers.map(showTier).join(", ") : "any"],
    ["Regions", asked.regions.length ? asked.regions.join(", ") : "any"],
    ["Isolation", `${asked.isolation} or better`],
    ["Ceiling", asked.ceiling_microcredits_per_hour === null ? "not named: half above the rate card" : <Price key="ceiling" of={asked.ceiling_microcredits_per_hour} />],
    ["Time limit", `${showDuration(job.wall_seconds)} for each slice`],
    ["Retries", job.retries ? countOf(job.retries, "retry", "retries") : "none"],
    ["Prefers", `${job.prefer}, ${job.priority_class} class, priority ${job.priority}`],
  ];
  return (
    <Card title="What it asks for">
      <dl className="grid grid-cols-[max-content_1fr] gap-x-6 gap-y-1.5">
        {rows.map(([name, value]) => (
          <div key={name} className="contents">
            <dt className="text-soft">{name}</dt>
            <dd className="figure">{value}</dd>
          </div>
        ))}
      </dl>
    </Card>
  );
}
