"use client";
// Every try of every slice on a line of time: where it ran, how it ended, what it cost.

import { useInfiniteQuery } from "@tanstack/react-query";
import { listJobAttempts, type Attempt, type Job } from "@/lib/api/gateway";
import { toneOf } from "@/lib/states";
import { showDuration, showEnum, showId } from "@/lib/words";
import { Empty } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Amount, Badge, Card, Tier, Time } from "@/ui/parts";
import { useNow, usePoll } from "@/ui/providers";
import { Table, type Column } from "@/ui/table";

const PAGE = 30;

export function Attempts({ job, onSlice }: { job: Job; onSlice: (slice: number) => void }) {
  const poll = usePoll();
  const attempts = useInfiniteQuery({
    queryKey: ["job-part", job.id, "attempts"],
    queryFn: ({ pageParam }) => listJobAttempts(job.id, { limit: PAGE, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: poll,
  });
  return (
    <Card title="Attempts" note="by slice" flush>
      <Paged query={attempts} itemsOf={(page) => page.attempts} empty={<Empty title="Nothing has been tried yet">An attempt begins when a machine takes a slice.</Empty>}>
        {(items) => <Timeline items={items} onSlice={onSlice} />}
      </Paged>
    </Card>
  );
}

function Timeline({ items, onSlice }: { items: Attempt[]; onSlice: (slice: number) => void }) {
  const now = useNow();
  const from = Math.min(...items.map((item) => item.leased_at.getTime()));
  const until = Math.max(from + 1000, ...items.map((item) => item.finished_at?.getTime() ?? now));
  const columns: Column<Attempt>[] = [
    {
      name: "Slice",
      cell: (item) => (
        <button type="button" className="figure underline decoration-line-strong underline-offset-2 hover:decoration-ink" onClick={() => onSlice(item.slice_index)}>
          {item.slice_index}
          {item.number > 1 ? <span className="text-soft"> · try {item.number}</span> : null}
        </button>
      ),
    },
    { name: "Where", cell: (item) => <Place attempt={item} /> },
    { name: "State", cell: (item) => <Ending attempt={item} /> },
    { name: "When", wide: true, cell: (item) => <Span attempt={item} from={from} until={until} now={now} /> },
    { name: "Ran", right: true, wide: true, cell: (item) => (item.run_seconds === null || item.run_seconds === undefined ? "–" : showDuration(item.run_seconds)) },
    { name: "Cost", right: true, cell: (item) => (item.charged_microcredits === null || item.charged_microcredits === undefined ? "–" : <Amount of={item.charged_microcredits} />) },
    { name: "Leased", right: true, wide: true, cell: (item) => <Time at={item.leased_at} /> },
  ];
  return <Table label="Attempts" rows={items} keyOf={(item) => item.id} columns={columns} />;
}

export function Place({ attempt }: { attempt: Attempt }) {
  return (
    <span className="inline-flex flex-wrap items-center gap-x-2">
      {attempt.tier ? <Tier tier={attempt.tier} /> : null}
      <span className="text-sm text-soft max-md:hidden">
        {attempt.node_name ?? (attempt.node_id ? showId(attempt.node_id) : "")} {attempt.slot}
      </span>
    </span>
  );
}

export function Ending({ attempt }: { attempt: Attempt }) {
  return (
    <span title={attempt.message ?? undefined}>
      <Badge state={attempt.state} />
      {attempt.cause ? <span className="ml-2 text-sm text-soft max-md:hidden">{showEnum(attempt.cause)}</span> : null}
    </span>
  );
}

function Span({ attempt, from, until, now }: { attempt: Attempt; from: number; until: number; now: number }) {
  const start = attempt.leased_at.getTime();
  const end = attempt.finished_at?.getTime() ?? now;
  const share = (moment: number) => Math.max(0, Math.min(100, ((moment - from) / (until - from)) * 100));
  return (
    <div className="relative h-2.5 w-44 rounded-full bg-raised lg:w-64" aria-hidden>
      <span className="absolute inset-y-0 min-w-1 rounded-full" style={{ left: `${share(start)}%`, width: `${Math.max(1, share(end) - share(start))}%`, background: `var(--${toneOf(attempt.state)})` }} />
    </div>
  );
}
