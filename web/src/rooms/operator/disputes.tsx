"use client";
// Pay that somebody doubts: it is frozen until the operator decides, and both sides read why.

import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import Link from "next/link";
import { useState, type ReactNode } from "react";
import { dismissDispute, listAllDisputes, upholdDispute, type AccountDispute } from "@/lib/api/gateway";
import { showEnum, showId } from "@/lib/words";
import { Confirm } from "@/ui/confirm";
import { Empty, Rows } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Amount, Card, Field, Time } from "@/ui/parts";
import { Table, type Column } from "@/ui/table";
import { complain, say } from "@/ui/toasts";

/** As the hub has it. */
const NOTE_LENGTH_MAX = 300;

const COLUMNS: Column<AccountDispute>[] = [
  { name: "Reason", cell: ({ dispute }) => <span className="block max-w-md min-w-48 break-words">{dispute.reason}</span> },
  { name: "Opened by", wide: true, cell: ({ dispute }) => showEnum(dispute.origin) },
  {
    name: "Slice",
    cell: ({ dispute }) => (
      <Link className="whitespace-nowrap underline decoration-line-strong underline-offset-4 hover:decoration-current" href={`/job/?id=${dispute.job_id}`}>
        {showId(dispute.job_id)} #{dispute.slice_index}
      </Link>
    ),
  },
  { name: "Node", wide: true, cell: ({ dispute }) => <Link className="underline decoration-line-strong underline-offset-4 hover:decoration-current" href={`/node/?id=${dispute.node_id}`}>{showId(dispute.node_id)}</Link> },
  { name: "At stake", right: true, cell: ({ dispute }) => <Amount of={dispute.charged_microcredits} /> },
  { name: "Opened", right: true, cell: ({ dispute }) => <Time at={dispute.opened_at} /> },
];

export function Disputes() {
  const queries = useQueryClient();
  const disputes = useInfiniteQuery({
    queryKey: ["operator", "disputes"],
    queryFn: ({ pageParam }) => listAllDisputes({ limit: 20, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: 15_000,
  });
  const decide = useMutation({
    mutationFn: (call: () => Promise<AccountDispute>) => call(),
    onSuccess: ({ dispute }) => {
      void queries.invalidateQueries({ queryKey: ["operator"] });
      say(dispute.state === "upheld" ? "Upheld. The submitter has everything back." : "Dismissed. The owner is paid when the holdback is over.");
    },
    onError: complain,
  });
  const verbs: Column<AccountDispute> = {
    name: "",
    right: true,
    cell: ({ dispute }) => (
      <span className="inline-flex gap-1">
        <Decide verb="Uphold" busy={decide.isPending} onDecide={(note) => decide.mutate(() => upholdDispute(dispute.id, note))}>
          The submitter gets everything back, the fee too, from wherever the owner&rsquo;s part is by now.
        </Decide>
        <Decide verb="Dismiss" busy={decide.isPending} onDecide={(note) => decide.mutate(() => dismissDispute(dispute.id, note))}>
          The pay is released to the owner when its holdback is over.
        </Decide>
      </span>
    ),
  };
  return (
    <Card title="Disputes" note="open, oldest first" flush className="xl:col-span-2">
      <Paged query={disputes} itemsOf={(page) => page.disputes} loading={<Rows count={2} />} empty={<Empty title="No open disputes" />}>
        {(items) => <Table label="Disputes" rows={items} keyOf={({ dispute }) => dispute.id} columns={[...COLUMNS, verbs]} />}
      </Paged>
    </Card>
  );
}

function Decide({ verb, busy, onDecide, children }: { verb: "Uphold" | "Dismiss"; busy: boolean; onDecide: (note: string) => void; children: ReactNode }) {
  const [note, setNote] = useState("");
  return (
    <Confirm trigger={verb} title={`${verb} this dispute?`} action={`${verb} it`} keep="Not yet" danger={verb === "Uphold"} disabled={busy} onConfirm={() => onDecide(note.trim())}>
      <p className="mb-4 whitespace-normal">{children}</p>
      <Field label="Why" hint="Both sides read it.">
        {(props) => <input {...props} required pattern=".*\S.*" maxLength={NOTE_LENGTH_MAX} value={note} onChange={(event) => setNote(event.target.value)} />}
      </Field>
    </Confirm>
  );
}
