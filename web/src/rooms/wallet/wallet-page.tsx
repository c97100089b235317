"use client";
// What you have, what is set aside, what you earned, and every movement of it.

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useRef, useState, type FormEvent, type ReactNode } from "react";
import { cancelPayout, getCredits, getPayoutDetails, getStatement, listHolds, listPayouts, listTopUps, newKey, pathOfStatement, requestPayout, requestTopUp, setPayoutDetails, spendEarnings, type Credits, type Payout, type TopUp, type TransferLine } from "@/lib/api/gateway";
import { HubError } from "@/lib/api/client";
import { parseCredits, showCash, showCredits, toWire } from "@/lib/money";
import { showEnum } from "@/lib/words";
import { Ask, Block, Empty, Room, Rows } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Amount, Badge, Button, Card, Choice, Field, Page, Stat, Time } from "@/ui/parts";
import { usePoll } from "@/ui/providers";
import { Table, type Column } from "@/ui/table";
import { complain, say } from "@/ui/toasts";
import { PayWhyCard } from "./pay-why";

export function WalletPage() {
  return (
    <Page title="Wallet" lead="Every credit is in the ledger twice, once on each side. What you see here is read from it.">
      <Room>
        <Wallet />
      </Room>
    </Page>
  );
}

function Wallet() {
  const poll = usePoll();
  const credits = useQuery({ queryKey: ["credits", "balance"], queryFn: getCredits, refetchInterval: poll });
  return (
    <div className="grid gap-6">
      <Ask query={credits} loading={<Block className="h-[46rem] lg:h-[28rem]" />}>
        {(found) => (
          <>
            <Balance credits={found} />
            <div className="grid gap-6 lg:grid-cols-3">
              <TopUpCard credits={found} />
              <CashOutCard credits={found} />
              <SpendCard credits={found} />
            </div>
          </>
        )}
      </Ask>
      <div className="grid items-start gap-6 xl:grid-cols-2">
        <TopUps />
        <Payouts />
      </div>
      <Holds />
      <Statement />
      <PayWhyCard />
    </div>
  );
}

function Balance({ credits }: { credits: Credits }) {
  return (
    <Card>
      {credits.frozen_at ? (
        <p role="alert" className="mb-4 rounded-lg bg-bad-wash p-3 text-bad">
          This account is frozen since <Time at={credits.frozen_at} />: a payment was taken back after it was spent. Nothing can be submitted or cashed out until it is settled.
        </p>
      ) : null}
      <dl className="grid grid-cols-2 gap-x-6 gap-y-4 lg:grid-cols-5">
        <Stat big name="To spend" value={<Amount of={credits.available_microcredits} />} />
        <Stat big name="Set aside for jobs" value={<Amount of={credits.held_microcredits} />} />
        <Stat big name="Earned, to cash out" value={<Amount of={credits.earned_microcredits} />} />
        <Stat big name="Earned, held back" value={<Amount of={credits.pending_microcredits} />} />
        {credits.owed_microcredits > 0n ? <Stat big name="Owed" value={<Amount of={credits.owed_microcredits} />} /> : <Stat big name="In dispute" value={<Amount of={credits.disputed_microcredits} />} />}
      </dl>
    </Card>
  );
}

/** An amount, typed and checked; what the hub says of it is said here. */
function AmountForm({ label, hint, least, most, action, onSend, pending }: { label: string; hint: ReactNode; least?: bigint; most?: bigint; action: string; onSend: (amount: bigint) => void; pending: boolean }) {
  const [text, setText] = useState("");
  const amount = parseCredits(text);
  const fault =
    !text ? null
    : amount === null || amount === 0n ? "An amount such as 500 or 12.50"
    : least !== undefined && amount < least ? `At least ${showCredits(least)}`
    : most !== undefined && amount > most ? `At most ${showCredits(most)}`
    : null;
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (amount === null || fault) return;
    onSend(amount);
    setText("");
  };
  return (
    <form onSubmit={send} className="grid gap-3">
      <Field label={label} hint={hint} error={fault}>{(props) => <input {...props} inputMode="decimal" value={text} onChange={(event) => setText(event.target.value)} placeholder="0.00" />}</Field>
      <Button type="submit" look="main" disabled={pending || amount === null || fault !== null}>
        {action}
      </Button>
    </form>
  );
}

/** One key for one wish: if an answer is lost, asking again for the same amount does not move it twice. */
function useWalletCall<T>(call: (amount: number, key: string) => Promise<T>, words: string) {
  const queries = useQueryClient();
  const wish = useRef<{ amount: bigint; key: string } | null>(null);
  return useMutation({
    mutationFn: (amount: bigint) => {
      if (wish.current?.amount !== amount) wish.current = { amount, key: newKey() };
      return call(toWire(amount), wish.current.key);
    },
    onSuccess: () => {
      wish.current = null;
      void queries.invalidateQueries({ queryKey: ["credits"] });
      say(words);
    },
    onError: complain,
  });
}

function TopUpCard({ credits }: { credits: Credits }) {
  const send = useWalletCall(requestTopUp, "Asked for. Pay as the instructions say.");
  return (
    <Card title="Top up">
      <AmountForm label="Credits" hint={`At least ${showCredits(credits.terms.top_up_microcredits_min)}; paid in ${credits.terms.currency}`} least={credits.terms.top_up_microcredits_min} action="Top up" pending={send.isPending} onSend={send.mutate} />
      {send.data ? <Instructions topUp={send.data} /> : null}
    </Card>
  );
}

function Instructions({ topUp }: { topUp: TopUp }) {
  return (
    <div className="mt-4 grid gap-2 rounded-lg border border-line bg-raised p-3 text-sm">
      <p>
        Pay <strong>{showCash(topUp.amount_minor, topUp.currency)}</strong>
        {topUp.reference ? <> with the reference <code className="font-mono">{topUp.reference}</code></> : null}.
      </p>
      {topUp.instructions ? <p className="whitespace-pre-wrap">{topUp.instructions}</p> : null}
      {/^https:\/\//.test(topUp.pay_url) ? (
        <a href={topUp.pay_url} rel="noreferrer" className="text-accent underline">
          Pay now
        </a>
      ) : null}
    </div>
  );
}

function CashOutCard({ credits }: { credits: Credits }) {
  const details = useQuery({ queryKey: ["credits", "payout-details"], queryFn: findPayoutDetails });
  const send = useWalletCall(requestPayout, "Asked for. It is reserved until the operator approves it.");
  return (
    <Card title="Cash out">
      <Ask query={details} loading={<Block className="h-64" />}>
        {(found) =>
          found ? (
            <>
              <AmountForm label="Credits" hint={`From ${showCredits(credits.terms.payout_microcredits_min)}; you have ${showCredits(credits.earned_microcredits)}`} least={credits.terms.payout_microcredits_min} most={credits.earned_microcredits} action="Cash out" pending={send.isPending} onSend={send.mutate} />
              <p className="mt-3 text-sm break-words text-soft">
                To {found.destination} in {found.currency} ({found.region}), changed <Time at={found.changed_at} />
              </p>
            </>
          ) : (
            <DetailsForm />
          )
        }
      </Ask>
    </Card>
  );
}

async function findPayoutDetails() {
  try {
    return await getPayoutDetails();
  } catch (error) {
    if (error instanceof HubError && error.status === 404) return null;
    throw error;
  }
}

function DetailsForm() {
  const queries = useQueryClient();
  const [region, setRegion] = useState("");
  const [destination, setDestination] = useState("");
  const save = useMutation({
    mutationFn: () => setPayoutDetails({ region, destination }),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["credits"] });
      say("Saved. Payouts go there from now on.");
    },
    onError: complain,
  });
  return (
    <form className="grid gap-3" onSubmit={(event: FormEvent) => { event.preventDefault(); save.mutate(); }}>
      <p className="text-sm text-soft">First say where the money goes.</p>
      <Field label="Country" hint="Two letters, such as IN">{(props) => <input {...props} required maxLength={2} pattern="[A-Za-z]{2}" value={region} onChange={(event) => setRegion(event.target.value.toUpperCase())} />}</Field>
      <Field label="Destination" hint="As your bank or provider knows you">{(props) => <input {...props} required value={destination} onChange={(event) => setDestination(event.target.value)} />}</Field>
      <Button type="submit" look="main" disabled={save.isPending || region.length !== 2 || !destination}>Save</Button>
    </form>
  );
}

function SpendCard({ credits }: { credits: Credits }) {
  const send = useWalletCall(spendEarnings, "Moved: it can pay for jobs now.");
  return (
    <Card title="Spend what you earned">
      <AmountForm label="Credits" hint={`Of ${showCredits(credits.earned_microcredits)}, without a fee`} most={credits.earned_microcredits} action="Move to spending" pending={send.isPending} onSend={send.mutate} />
    </Card>
  );
}

function TopUps() {
  const topUps = useQuery({ queryKey: ["credits", "top-ups"], queryFn: () => listTopUps({ limit: 10 }) });
  const columns: Column<TopUp>[] = [
    { name: "Amount", cell: (each) => <Amount of={each.amount_microcredits} /> },
    { name: "State", cell: (each) => <Badge state={each.state} /> },
    { name: "Cash", right: true, wide: true, cell: (each) => showCash(each.amount_minor, each.currency) },
    { name: "Asked", right: true, cell: (each) => <Time at={each.created_at} /> },
  ];
  return (
    <Card title="Top-ups" flush className="min-h-56">
      <Ask query={topUps} loading={<Rows count={3} />} isEmpty={(page) => !page.top_ups.length} empty={<Empty title="No top-ups yet" />}>
        {(page) => <Table label="Top-ups" rows={page.top_ups} keyOf={(each) => each.id} columns={columns} />}
      </Ask>
    </Card>
  );
}

function Payouts() {
  const queries = useQueryClient();
  const payouts = useQuery({ queryKey: ["credits", "payouts"], queryFn: () => listPayouts({ limit: 10 }) });
  const cancel = useMutation({ mutationFn: cancelPayout, onSuccess: () => void queries.invalidateQueries({ queryKey: ["credits"] }), onError: complain });
  const columns: Column<Payout>[] = [
    { name: "Amount", cell: (each) => <Amount of={each.amount_microcredits} /> },
    { name: "State", cell: (each) => <span title={each.failure || undefined}><Badge state={each.state} /></span> },
    { name: "Cash", right: true, cell: (each) => showCash(each.amount_minor, each.currency) },
    { name: "Asked", right: true, cell: (each) => <Time at={each.created_at} /> },
    { name: "", right: true, cell: (each) => (each.state === "requested" || each.state === "reserved" ? <Button look="quiet" onClick={() => cancel.mutate(each.id)}>Cancel</Button> : null) },
  ];
  return (
    <Card title="Payouts" flush className="min-h-56">
      <Ask query={payouts} loading={<Rows count={3} />} isEmpty={(page) => !page.payouts.length} empty={<Empty title="No payouts yet" />}>
        {(page) => <Table label="Payouts" rows={page.payouts} keyOf={(each) => each.id} columns={columns} />}
      </Ask>
    </Card>
  );
}

function Holds() {
  const holds = useInfiniteQuery({
    queryKey: ["credits", "holds"],
    queryFn: ({ pageParam }) => listHolds({ limit: 20, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
  });
  return (
    <Card title="Set aside" note="for jobs that have not ended" flush className="min-h-60">
      <Paged query={holds} loading={<Rows count={3} />} itemsOf={(page) => page.holds} empty={<Empty title="Nothing is set aside">A job sets aside the most that it can cost, and gives the rest back when it ends.</Empty>}>
        {(items) => (
          <Table
            label="Holds"
            rows={items}
            keyOf={(hold) => hold.job_id}
            hrefOf={(hold) => `/job/?id=${hold.job_id}`}
            columns={[
              { name: "Job", cell: (hold) => <span className="inline-block max-w-64 truncate align-bottom">{hold.name || "unnamed"}</span> },
              { name: "State", cell: (hold) => <Badge state={hold.state} /> },
              { name: "Set aside", right: true, cell: (hold) => <Amount of={hold.held_microcredits} exact column /> },
              { name: "Paid so far", right: true, wide: true, cell: (hold) => <Amount of={hold.charged_microcredits} exact column /> },
              { name: "Submitted", right: true, wide: true, cell: (hold) => <Time at={hold.created_at} /> },
            ]}
          />
        )}
      </Paged>
    </Card>
  );
}

// The words of the tiles above, with whose it is where both sides have one.
const SIDES: Record<string, string> = {
  submitter_available: "to spend",
  submitter_held: "submitter, set aside",
  owner_pending: "owner, held back",
  owner_available: "earned",
  world: "outside the grid",
  payout_clearing: "on its way out",
  receivable: "owed",
};

const LINES: Column<TransferLine>[] = [
  { name: "What", cell: (line) => <span className="font-medium">{showEnum(line.kind)}</span> },
  { name: "From", wide: true, cell: (line) => SIDES[line.source] ?? showEnum(line.source) },
  { name: "To", wide: true, cell: (line) => SIDES[line.target] ?? showEnum(line.target) },
  { name: "Amount", right: true, cell: (line) => <span className={line.flow === "in" ? "text-ok" : line.flow === "out" ? "text-ink" : "text-soft"}>{line.flow === "in" ? "+" : line.flow === "out" ? "−" : ""}<Amount of={line.amount_microcredits} exact column /></span> },
  { name: "When", right: true, cell: (line) => <Time at={line.at} /> },
];

const PERIODS = ["1", "7", "30"] as const;
const PERIOD_NAMES = { "1": "Day", "7": "Week", "30": "Month" };

function Statement() {
  const [days, setDays] = useState<(typeof PERIODS)[number]>("7");
  const statement = useInfiniteQuery({
    queryKey: ["credits", "statement", days],
    queryFn: ({ pageParam }) => getStatement({ limit: 50, cursor: pageParam, from: startOf(Number(days)) }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
  });
  return (
    <Card
      title="Statement"
      note="oldest first"
      flush
      action={
        <span className="flex items-center gap-4">
          <a href={pathOfStatement} download className="text-sm text-accent underline">
            As CSV
          </a>
          <Choice label="Period" value={days} options={PERIODS} onChange={setDays} show={(each) => PERIOD_NAMES[each]} />
        </span>
      }
    >
      <Paged query={statement} itemsOf={(page) => page.lines} empty={<Empty title="Nothing has moved yet" />}>
        {(items) => <Table label="Statement" rows={items} keyOf={(line) => String(line.id)} columns={LINES} />}
      </Paged>
    </Card>
  );
}

/** Whole days, so that asking again gives the same page. */
function startOf(days: number): string {
  return new Date(Date.now() - (days - 1) * 86_400_000).toISOString().slice(0, 10);
}
