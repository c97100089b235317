"use client";
// Why it waits, why it ran there, why it died: the hub's own account of it, in its words.

import { useQuery } from "@tanstack/react-query";
import { getJobWhy, type Job, type JobWhy } from "@/lib/api/gateway";
import { countOf, showEnum, toSentence } from "@/lib/words";
import { Ask, Block } from "@/ui/faces";
import { Amount, Badge, Card, LinkButton, Price, ShareBar, Stat, Tier } from "@/ui/parts";
import { usePoll } from "@/ui/providers";
import { Table } from "@/ui/table";

export function Why({ job, slice }: { job: Job; slice: number }) {
  const poll = usePoll();
  const why = useQuery({ queryKey: ["job-part", job.id, "why", slice], queryFn: () => getJobWhy(job.id, slice), refetchInterval: poll });
  return (
    <Card title="Why">
      <Ask query={why} loading={<Block className="h-72" />}>
        {(found) => (
          <div className="grid min-h-72 min-w-0 content-start gap-5">
            {found.waiting ? <Waiting why={found.waiting} jobId={job.id} /> : null}
            {found.slice ? <OneSlice why={found.slice} /> : null}
            {found.validation ? <Results why={found.validation} /> : null}
            {!found.waiting && !found.slice ? <p className="text-soft">Nothing waits, and there is nothing to explain.</p> : null}
          </div>
        )}
      </Ask>
    </Card>
  );
}

type WaitingWhy = NonNullable<JobWhy["waiting"]>;
type SliceWhy = NonNullable<JobWhy["slice"]>;
type ResultsWhy = NonNullable<JobWhy["validation"]>;

function Results({ why }: { why: ResultsWhy }) {
  const { counts } = why;
  return (
    <section aria-label="How sure the results are" className="grid min-w-0 gap-3">
      <p>{why.words}</p>
      <ShareBar
        label="Results"
        parts={[
          { name: "checked by others", value: counts.verified, colour: "var(--ok)" },
          { name: "from trusted nodes", value: counts.accepted, colour: "var(--accent)" },
          { name: "being checked", value: counts.verifying, colour: "var(--wait)" },
          { name: "put right", value: counts.replaced, colour: "var(--busy)" },
          { name: "unverified", value: counts.unverified, colour: "var(--idle)" },
        ]}
      />
      <dl className="grid grid-cols-3 gap-4">
        <Stat name="Confidence" value={why.confidence === null || why.confidence === undefined ? "–" : `${(why.confidence * 100).toFixed(2)} %`} />
        <Stat name="Runs to check" value={why.check_count} />
        <Stat name="They cost" value={<Amount of={why.check_microcredits} exact />} />
      </dl>
    </section>
  );
}

function Waiting({ why, jobId }: { why: WaitingWhy; jobId: string }) {
  return (
    <section aria-label="Why it waits" className="grid min-w-0 gap-3">
      <p>
        <Badge tone="wait">waits</Badge> <span className="ml-1">{why.words}</span>
      </p>
      {why.notes.map((note) => (
        <p key={note} className="text-sm text-soft">
          {note}
        </p>
      ))}
      {why.gates.length ? (
        <ul className="grid gap-1.5">
          {why.gates.map((gate) => (
            <li key={gate.gate} className="flex flex-wrap items-center gap-x-3">
              <span className="w-16 shrink-0 text-sm text-soft">{showEnum(gate.gate)}</span>
              <span className="w-44 shrink-0 truncate" title={gate.asked}>
                {gate.asked}
              </span>
              <span aria-hidden className="h-2 min-w-16 flex-1 overflow-hidden rounded-full bg-raised max-sm:hidden">
                <span className="block h-full bg-wait" style={{ width: `${why.slot_count ? (gate.failed_count / why.slot_count) * 100 : 0}%` }} />
              </span>
              <span className="figure ml-auto w-28 shrink-0 text-right text-sm">
                {gate.failed_count} of {countOf(why.slot_count, "slot")}
              </span>
            </li>
          ))}
        </ul>
      ) : null}
      {why.suggestions.map((suggestion, index) => (
        <div key={index} className="rounded-lg border border-line bg-raised p-3">
          <p className="font-medium">This would let it run</p>
          <ul className="mt-1 grid gap-1">
            {suggestion.changes.map((change) => (
              <li key={change.gate}>{toSentence(change.words)}</li>
            ))}
          </ul>
          <p className="mt-1 text-sm text-soft">
            {countOf(suggestion.slot_count, "slot")} would fit, {suggestion.free_count} of them free now.
          </p>
          <LinkButton className="mt-2" href={`/submit/?from=${jobId}&change=${index}`}>
            Submit it so
          </LinkButton>
        </div>
      ))}
      {why.turn.words ? <p className="text-sm text-soft">{why.turn.words}</p> : null}
    </section>
  );
}

function OneSlice({ why }: { why: SliceWhy }) {
  return (
    <section aria-label={`Slice ${why.index}`} className="grid min-w-0 gap-3">
      <p>
        Slice <strong className="figure">{why.index}</strong> <Badge state={why.state} /> {why.attempt_count ? <span className="text-soft">{countOf(why.attempt_count, "attempt")}</span> : null}
      </p>
      {why.cause_words ? <p>{toSentence(why.cause_words)}</p> : null}
      {why.next_words ? <p className="text-soft">{why.next_words}</p> : null}
      {why.advice.map((advice) => (
        <p key={advice.remedy} className="rounded-lg bg-accent-wash p-3">
          {toSentence(advice.words)}
        </p>
      ))}
      {why.choice ? (
        <>
          <p className="text-soft">{why.choice.words}</p>
          <div className="-mx-4 sm:-mx-5">
            <Table
              label="Slots that fit, by score"
              rows={why.choice.candidates.slice(0, 6)}
              keyOf={(candidate) => String(candidate.rank)}
              columns={[
                { name: "#", cell: (candidate) => <span className={candidate.chosen ? "font-semibold text-accent" : ""}>{candidate.rank}{candidate.chosen ? " ✓" : ""}</span> },
                { name: "Slot", cell: (candidate) => <span><Tier tier={candidate.tier} /> <span className="text-sm text-soft">{candidate.node_name ?? candidate.slot}</span></span> },
                { name: "Price", right: true, cell: (candidate) => <Price of={candidate.price_microcredits_per_hour} /> },
                { name: "Speed", right: true, wide: true, cell: (candidate) => `${candidate.speed_tflops.toFixed(1)} TF` },
                { name: "Score", right: true, cell: (candidate) => candidate.total.toFixed(2) },
              ]}
            />
          </div>
        </>
      ) : null}
    </section>
  );
}
