"use client";
// Hand in a job: what it costs is asked while you type, and what you click can be typed, too.

import { keepPreviousData, useMutation, useQuery } from "@tanstack/react-query";
import Link from "next/link";
import { useRouter, useSearchParams } from "next/navigation";
import { useEffect, useMemo, useState, type FormEvent } from "react";
import { getCredits, getJobWhy, getQuote, getRateCard, getSpec, newKey, submitJob, type Quote } from "@/lib/api/gateway";
import { parseCredits, toWire } from "@/lib/money";
import { countOf, showDuration, showRegion, showTier } from "@/lib/words";
import { Block, Problem, Room } from "@/ui/faces";
import { Amount, Button, Card, Choice, CopyBox, Field, Page, Price, Tier } from "@/ui/parts";
import { Table } from "@/ui/table";
import { complain } from "@/ui/toasts";
import { useLater } from "@/ui/use-later";
import { useIdParam } from "@/ui/use-query-param";
import { fromSpec, splitCommand, START, toCommandLine, toPython, toRequirements, toSpec, type Draft } from "./submit.model";

export function SubmitPage() {
  return (
    <Page title="Submit a job" lead="A script runs once for every slice, each on a machine that fits. You pay for seconds that were used.">
      <Room>
        <Start />
      </Room>
    </Page>
  );
}

/** An earlier job may be the start of this one, also with the change that the hub proposed. */
function Start() {
  const from = useIdParam("from");
  const change = Number(useSearchParams().get("change") ?? NaN);
  const before = useQuery({ queryKey: ["job-part", from, "spec"], enabled: Boolean(from), staleTime: Infinity, queryFn: () => loadDraft(from ?? "", change) });
  if (!from) return <Form start={START} />;
  if (before.error) return <Problem error={before.error} onRetry={() => void before.refetch()} />;
  return before.data ? <Form start={before.data} /> : <Block className="h-96" />;
}

async function loadDraft(jobId: string, change: number): Promise<Draft> {
  const spec = await getSpec(jobId);
  if (Number.isNaN(change)) return fromSpec(spec);
  const proposed = (await getJobWhy(jobId)).waiting?.suggestions[change];
  return fromSpec(proposed ? { ...spec, requirements: proposed.requirements, wall_seconds: proposed.wall_seconds ?? spec.wall_seconds } : spec);
}

function Form({ start }: { start: Draft }) {
  const [draft, setDraft] = useState(start);
  const [key] = useState(newKey);
  const router = useRouter();
  const card = useQuery({ queryKey: ["market", "rate-card"], queryFn: getRateCard, staleTime: 300_000 });
  const set = <K extends keyof Draft>(name: K, value: Draft[K]) => setDraft((before) => ({ ...before, [name]: value }));
  const ceiling = draft.ceiling ? parseCredits(draft.ceiling) : null;
  const faults = findFaults(draft, ceiling);
  const submit = useMutation({
    mutationFn: () => submitJob(toSpec(draft, ceiling === null ? null : toWire(ceiling)), key),
    onSuccess: (job) => router.push(`/job/?id=${job.id}`),
    onError: complain,
  });
  const hand = (event: FormEvent) => {
    event.preventDefault();
    if (!faults.any) submit.mutate();
  };
  return (
    <div className="grid items-start gap-6 xl:grid-cols-[minmax(0,1fr)_26rem]">
      <form id="job" onSubmit={hand} className="grid gap-6">
        <Card title="What to run">
          <div className="grid gap-4">
            <div className="grid gap-4 sm:grid-cols-2">
              <Field label="Name">{(props) => <input {...props} value={draft.name} maxLength={200} onChange={(event) => set("name", event.target.value)} />}</Field>
              <Field label="Slices" hint="How often it runs: each run is a slice with its own number, from 0" error={faults.slices}>
                {(props) => <input {...props} type="number" min={1} max={100000} value={draft.slices} onChange={(event) => set("slices", Number(event.target.value))} />}
              </Field>
            </div>
            <Choice label="What to run" value={draft.mode} options={["script", "command"] as const} onChange={(mode) => set("mode", mode)} show={(each) => (each === "script" ? "Python script" : "Command")} />
            {draft.mode === "script" ? (
              <Field label="Script" hint="Each slice finds its number in COMPUTEPOOL_SLICE_INDEX and leaves results in COMPUTEPOOL_OUTPUT_DIR" error={faults.script}>
                {(props) => <textarea {...props} className={`${props.className} min-h-56 font-mono text-[13px] leading-relaxed`} spellCheck={false} value={draft.script} onChange={(event) => set("script", event.target.value)} />}
              </Field>
            ) : (
              <Field label="Command" hint="Split as a shell would; write sh -c '…' for more" error={faults.command}>
                {(props) => <input {...props} className={`${props.className} font-mono`} spellCheck={false} value={draft.command} onChange={(event) => set("command", event.target.value)} />}
              </Field>
            )}
          </div>
        </Card>
        <Card title="Where it may run">
          <div className="grid gap-4 sm:grid-cols-2 lg:grid-cols-3">
            <Field label="GPU">
              {(props) => (
                <select {...props} value={draft.gpu ? "yes" : "no"} onChange={(event) => set("gpu", event.target.value === "yes")}>
                  <option value="no">not needed</option>
                  <option value="yes">needed</option>
                </select>
              )}
            </Field>
            <Field label="GPU memory, GB" hint={draft.gpu ? "0: any" : "only with a GPU"}>
              {(props) => <input {...props} type="number" min={0} max={512} disabled={!draft.gpu} value={draft.vramGb} onChange={(event) => set("vramGb", Number(event.target.value))} />}
            </Field>
            <Field label="Tier">
              {(props) => (
                <select {...props} value={draft.tier} onChange={(event) => set("tier", event.target.value)}>
                  <option value="">any</option>
                  {Object.keys(card.data?.tiers_ppm ?? {}).map((tier) => (
                    <option key={tier} value={tier}>
                      {showTier(tier)}
                    </option>
                  ))}
                </select>
              )}
            </Field>
            <Field label="Cores">{(props) => <input {...props} type="number" min={1} max={1024} value={draft.cores} onChange={(event) => set("cores", Number(event.target.value))} />}</Field>
            <Field label="RAM, MB">{(props) => <input {...props} type="number" min={1} value={draft.ramMb} onChange={(event) => set("ramMb", Number(event.target.value))} />}</Field>
            <Field label="Disk, GB">{(props) => <input {...props} type="number" min={0} value={draft.diskGb} onChange={(event) => set("diskGb", Number(event.target.value))} />}</Field>
            <Field label="Country" hint="Two letters; empty: any">{(props) => <input {...props} maxLength={2} value={draft.region} onChange={(event) => set("region", event.target.value)} />}</Field>
            <Field label="Kind" hint="Owners choose which kinds they take">
              {(props) => (
                <select {...props} value={draft.kind} onChange={(event) => set("kind", event.target.value)}>
                  {[...new Set(["compute", ...Object.keys(card.data?.slice_bases_microcredits ?? {}), draft.kind])].map((kind) => (
                    <option key={kind}>{kind}</option>
                  ))}
                </select>
              )}
            </Field>
          </div>
        </Card>
        <Card title="Time and money">
          <div className="grid gap-4 sm:grid-cols-2 lg:grid-cols-4">
            <Field label="Time limit, minutes" hint="For each slice">{(props) => <input {...props} type="number" min={1} value={draft.wallMinutes} onChange={(event) => set("wallMinutes", Number(event.target.value))} />}</Field>
            <Field label="Ceiling, credits per hour" hint="Empty: half above the rate card" error={faults.ceiling}>{(props) => <input {...props} inputMode="decimal" value={draft.ceiling} onChange={(event) => set("ceiling", event.target.value)} />}</Field>
            <Field label="Retries">{(props) => <input {...props} type="number" min={0} max={100} value={draft.retries} onChange={(event) => set("retries", Number(event.target.value))} />}</Field>
            <div>
              <p className="mb-1 text-sm font-medium">Prefer</p>
              <Choice label="Prefer" value={draft.prefer} options={["value", "cheapest", "fastest"] as const} onChange={(prefer) => set("prefer", prefer)} />
            </div>
          </div>
          <div className="mt-4 flex flex-wrap gap-x-8 gap-y-3">
            <div>
              <p className="mb-1 text-sm font-medium">Have results checked by others, comparing</p>
              <Choice label="Compare results" value={draft.compare} options={["none", "exact", "numeric"] as const} show={(compare) => ({ none: "not at all", exact: "every byte", numeric: "numbers, within a tolerance" })[compare]} onChange={(compare) => set("compare", compare)} />
            </div>
            {draft.compare !== "none" ? (
              <div>
                <p className="mb-1 text-sm font-medium">Which of them</p>
                <Choice label="Which results are checked" value={draft.verify} options={["audit", "quorum"] as const} show={(verify) => (verify === "audit" ? "some" : "all, by two strangers")} onChange={(verify) => set("verify", verify)} />
              </div>
            ) : null}
          </div>
        </Card>
      </form>
      <div className="grid gap-6 xl:sticky xl:top-20">
        <LiveQuote draft={draft} ceiling={ceiling} broken={faults.any} />
        <Button type="submit" form="job" look="main" className="min-h-11 text-base" disabled={faults.any || submit.isPending}>
          {submit.isPending ? "Handing it in …" : `Submit ${countOf(draft.slices, "slice")}`}
        </Button>
        <Twins draft={draft} />
      </div>
    </div>
  );
}

function findFaults(draft: Draft, ceiling: bigint | null) {
  const slices = Number.isInteger(draft.slices) && draft.slices >= 1 && draft.slices <= 100_000 ? null : "From 1 to 100 000";
  const script = draft.mode === "script" && !draft.script.trim() ? "There is nothing to run" : null;
  const command = draft.mode === "command" && !splitCommand(draft.command)?.length ? "Not a command: is a quote left open?" : null;
  const price = draft.ceiling && ceiling === null ? "An amount such as 12.50" : null;
  return { slices, script, command, ceiling: price, any: Boolean(slices ?? script ?? command ?? price) };
}

function LiveQuote({ draft, ceiling, broken }: { draft: Draft; ceiling: bigint | null; broken: boolean }) {
  const asked = useMemo(
    () => ({
      kind: draft.kind,
      slice_count: draft.slices,
      wall_seconds: draft.wallMinutes * 60,
      requirements: toRequirements(draft, ceiling === null ? null : toWire(ceiling)),
    }),
    [draft, ceiling],
  );
  const later = useLater(JSON.stringify(asked));
  const quote = useQuery({
    queryKey: ["quote", later],
    queryFn: () => getQuote(JSON.parse(later) as typeof asked),
    enabled: !broken,
    placeholderData: keepPreviousData,
    refetchInterval: 15_000,
  });
  return (
    <Card title="Quote" note="a forecast, asked as you type">
      <div className="min-h-80" aria-live="polite">
        {quote.data ? <QuoteBody quote={quote.data} /> : quote.error ? <Problem error={quote.error} /> : <Block className="h-80" />}
      </div>
    </Card>
  );
}

function QuoteBody({ quote }: { quote: Quote }) {
  const credits = useQuery({ queryKey: ["credits", "balance"], queryFn: getCredits });
  const isShort = credits.data !== undefined && credits.data.available_microcredits < quote.hold_microcredits;
  return (
    <div className="grid grid-cols-[minmax(0,1fr)] gap-4" data-testid="quote">
      <div>
        <p className="text-sm text-soft">Likely cost</p>
        <p className="text-3xl font-semibold">{quote.cost ? <Amount of={quote.cost.likely_microcredits} /> : "Nobody could run it"}</p>
        {quote.cost ? (
          <p className="text-sm text-soft">
            from <Amount of={quote.cost.low_microcredits} /> to <Amount of={quote.cost.high_microcredits} />
          </p>
        ) : null}
      </div>
      <dl className="grid grid-cols-[1fr_max-content] gap-x-4 gap-y-1.5">
        <dt className="text-soft">Starts</dt>
        <dd className="figure text-right">{quote.starts_in_seconds === null ? "not foreseen" : quote.starts_in_seconds < 2 ? "at once" : `in ${showDuration(quote.starts_in_seconds)}`}</dd>
        <dt className="text-soft">Each slice runs, likely</dt>
        <dd className="figure text-right">{showDuration(quote.seconds_likely)}</dd>
        <dt className="text-soft">Set aside until it ends</dt>
        <dd className="text-right"><Amount of={quote.hold_microcredits} /></dd>
        {credits.data ? (
          <>
            <dt className="text-soft">You have</dt>
            <dd className={`text-right ${isShort ? "text-bad" : ""}`}><Amount of={credits.data.available_microcredits} /></dd>
          </>
        ) : null}
        <dt className="text-soft">Never dearer than</dt>
        <dd className="text-right"><Price of={quote.ceiling_microcredits_per_hour} /></dd>
        {quote.owners_earn ? (
          <>
            <dt className="text-soft">Owners earn of it</dt>
            <dd className="text-right"><Amount of={quote.owners_earn.likely_microcredits} /></dd>
          </>
        ) : null}
      </dl>
      <p className="text-sm">{quote.why}</p>
      {quote.cost ? null : <p className="text-sm">Ask for less. Or submit it as it is: it waits, and its page says what would let it run.</p>}
      {isShort ? (
        <p className="text-sm text-bad">
          Not enough to be set aside. <Link className="underline" href="/wallet/">Top up</Link>, or choose a lower ceiling, a shorter time limit or fewer slices.
        </p>
      ) : null}
      {quote.places.length ? (
        <div className="-mx-4 sm:-mx-5">
          <Table
            label="Where it could run"
            rows={quote.places.slice(0, 5)}
            keyOf={(place) => `${place.tier} ${place.region}`}
            columns={[
              { name: "Tier", cell: (place) => <span title={place.refusal_words ?? undefined} className={place.refusal ? "text-soft line-through" : ""}><Tier tier={place.tier} /></span> },
              { name: "Region", cell: (place) => showRegion(place.region) },
              { name: "Free", right: true, cell: (place) => `${place.free_count} / ${place.slot_count}` },
              { name: "Price", right: true, cell: (place) => <Price of={place.price_microcredits_per_hour} /> },
            ]}
          />
        </div>
      ) : null}
    </div>
  );
}

function Twins({ draft }: { draft: Draft }) {
  const [shown, setShown] = useState<"terminal" | "python">("terminal");
  const [hub, setHub] = useState("");
  useEffect(() => setHub(window.location.origin), []);
  return (
    <Card title="The same, typed" action={<Choice label="Form" value={shown} options={["terminal", "python"] as const} onChange={setShown} show={(each) => (each === "terminal" ? "Terminal" : "Python")} />}>
      {shown === "terminal" ? <CopyBox label="command" text={`export HUB_URL=${hub}\n${toCommandLine(draft)}`} /> : <CopyBox label="Python" text={toPython(draft)} />}
    </Card>
  );
}
