"use client";
// What waits for the operator's word: payouts to approve, to confirm or to refuse; top-ups that a bank has seen; disputes.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { approvePayout, listAllPayouts, listAllTopUps, recordPayment, refusePayout } from "@/lib/api/gateway";
import { showCash } from "@/lib/money";
import { showId } from "@/lib/words";
import { Confirm } from "@/ui/confirm";
import { Ask, Empty, Rows } from "@/ui/faces";
import { Amount, Badge, Button, Card, Time } from "@/ui/parts";
import { Table } from "@/ui/table";
import { complain, say } from "@/ui/toasts";
import { Disputes } from "./disputes";

export default function Decisions() {
  const queries = useQueryClient();
  const payouts = useQuery({ queryKey: ["operator", "payouts"], queryFn: () => listAllPayouts({ limit: 20 }), refetchInterval: 15_000 });
  const topUps = useQuery({ queryKey: ["operator", "top-ups"], queryFn: () => listAllTopUps({ limit: 20 }), refetchInterval: 15_000 });
  const act = useMutation({
    mutationFn: (call: () => Promise<unknown>) => call(),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["operator"] });
      say("Done.");
    },
    onError: complain,
  });
  const confirm = (kind: "payout.confirmed" | "top_up.paid", paid: { id: string; currency: string; amount_minor: number }) =>
    act.mutate(() => recordPayment({ kind, subject_id: paid.id, currency: paid.currency, amount_minor: paid.amount_minor, reference: "confirmed by hand" }));
  return (
    <div className="grid items-start gap-6 xl:grid-cols-2">
      <Card title="Payouts" flush>
        <Ask query={payouts} loading={<Rows count={3} />} isEmpty={(page) => !page.payouts.length} empty={<Empty title="No payouts" />}>
          {(page) => (
            <Table
              label="Payouts"
              rows={page.payouts}
              keyOf={(each) => each.payout.id}
              columns={[
                { name: "Account", cell: (each) => <span title={each.destination}>{showId(each.account_id)}</span> },
                { name: "Amount", right: true, cell: (each) => <span title={showCash(each.payout.amount_minor, each.payout.currency)}><Amount of={each.payout.amount_microcredits} /></span> },
                { name: "State", cell: (each) => <Badge state={each.payout.state} /> },
                {
                  name: "",
                  right: true,
                  cell: ({ payout }) =>
                    payout.state === "requested" || payout.state === "reserved" ? (
                      <span className="inline-flex gap-1">
                        <Button disabled={act.isPending} onClick={() => act.mutate(() => approvePayout(payout.id))}>Approve</Button>
                        <Confirm trigger="Refuse" title="Refuse this payout?" action="Refuse it" onConfirm={() => act.mutate(() => refusePayout(payout.id, "refused by the operator"))}>
                          The amount goes back to what the owner has earned.
                        </Confirm>
                      </span>
                    ) : payout.state === "sent" || payout.state === "unknown" ? (
                      <Button disabled={act.isPending} onClick={() => confirm("payout.confirmed", payout)}>Confirm</Button>
                    ) : (
                      <Time at={payout.created_at} />
                    ),
                },
              ]}
            />
          )}
        </Ask>
      </Card>
      <Card title="Top-ups" flush>
        <Ask query={topUps} loading={<Rows count={3} />} isEmpty={(page) => !page.top_ups.length} empty={<Empty title="No top-ups" />}>
          {(page) => (
            <Table
              label="Top-ups"
              rows={page.top_ups}
              keyOf={(each) => each.top_up.id}
              columns={[
                { name: "Account", cell: (each) => showId(each.account_id) },
                { name: "Cash", right: true, cell: (each) => showCash(each.top_up.amount_minor, each.top_up.currency) },
                { name: "State", cell: (each) => <Badge state={each.top_up.state} /> },
                { name: "", right: true, cell: ({ top_up }) => (top_up.state === "requested" ? <Button disabled={act.isPending} onClick={() => confirm("top_up.paid", top_up)}>It was paid</Button> : <Time at={top_up.created_at} />) },
              ]}
            />
          )}
        </Ask>
      </Card>
      <Disputes />
    </div>
  );
}
