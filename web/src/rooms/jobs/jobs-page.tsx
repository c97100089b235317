"use client";
// The caller's jobs; an operator's list holds everyone's.

import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { listJobs, type Job, type JobState } from "@/lib/api/gateway";
import { showCount } from "@/lib/words";
import { Empty, Room } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Amount, Badge, Card, Choice, Field, LinkButton, Page, ShareBar, Time } from "@/ui/parts";
import { usePoll } from "@/ui/providers";
import { Table, type Column } from "@/ui/table";
import { useLater } from "@/ui/use-later";

const STATES = ["all", "queued", "running", "succeeded", "failed", "cancelled"] as const;
const PAGE = 50;

export function JobsPage() {
  return (
    <Page title="Jobs" lead="What you have handed in, newest first. An operator sees everyone's." actions={<LinkButton look="main" className="sm:hidden" href="/submit/">Submit a job</LinkButton>}>
      <Room>
        <Jobs />
      </Room>
    </Page>
  );
}

function Jobs() {
  const [state, setState] = useState<(typeof STATES)[number]>("all");
  const [name, setName] = useState("");
  const sought = useLater(name.trim());
  const poll = usePoll();
  const jobs = useInfiniteQuery({
    queryKey: ["jobs", state, sought],
    queryFn: ({ pageParam }) =>
      listJobs({ limit: PAGE, cursor: pageParam, state: state === "all" ? undefined : (state as JobState), name: sought || undefined }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: poll,
    placeholderData: keepPreviousData,
  });
  const filtered = state !== "all" || Boolean(sought);
  return (
    <Card flush>
      <div className="flex flex-wrap items-end justify-between gap-3 border-b border-line p-4 sm:px-5">
        <Choice label="State" value={state} options={STATES} onChange={setState} />
        <div className="w-full sm:w-64">
          <Field label="Find by name">{(props) => <input {...props} type="search" value={name} onChange={(event) => setName(event.target.value)} placeholder="name contains" />}</Field>
        </div>
      </div>
      <Paged
        query={jobs}
        itemsOf={(page) => page.jobs}
        empty={
          filtered ? (
            <Empty title="No job is like that">Change the filter to see others.</Empty>
          ) : (
            <Empty title="No jobs yet" action={<LinkButton look="main" href="/submit/">Submit your first</LinkButton>}>
              A job is a script that runs once or many times, each time on a machine that fits.
            </Empty>
          )
        }
      >
        {(items) => <Table label="Jobs" rows={items} keyOf={(job) => job.id} hrefOf={(job) => `/job/?id=${job.id}`} columns={COLUMNS} />}
      </Paged>
    </Card>
  );
}

const COLUMNS: Column<Job>[] = [
  { name: "Name", cell: (job) => <span className="inline-block max-w-72 truncate align-bottom">{job.name || "unnamed"}</span> },
  { name: "State", cell: (job) => <Badge state={job.state} /> },
  { name: "Slices", wide: true, cell: (job) => <Progress job={job} /> },
  { name: "Done", right: true, cell: (job) => `${showCount(job.counts.succeeded)} / ${showCount(job.slice_count)}` },
  { name: "Cost", right: true, wide: true, cell: (job) => <Amount of={job.charged_microcredits} /> },
  { name: "Submitted", right: true, wide: true, cell: (job) => <Time at={job.created_at} /> },
];

export function Progress({ job }: { job: Job }) {
  const { counts } = job;
  return (
    <div className="w-40">
      <ShareBar
        label="Slices"
        parts={[
          { name: "succeeded", value: counts.succeeded, colour: "var(--ok)" },
          { name: "running", value: counts.running + counts.leased, colour: "var(--busy)" },
          { name: "being checked", value: counts.verifying, colour: "var(--wait)" },
          { name: "failed", value: counts.failed, colour: "var(--bad)" },
          { name: "cancelled", value: counts.cancelled, colour: "var(--idle)" },
          { name: "waiting", value: counts.queued, colour: "var(--line)" },
        ]}
      />
    </div>
  );
}
