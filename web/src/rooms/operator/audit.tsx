"use client";
// Everything that happened, searched by what, who and where.

import { useInfiniteQuery } from "@tanstack/react-query";
import Link from "next/link";
import { useState } from "react";
import { searchEvents } from "@/lib/api/gateway";
import { showId } from "@/lib/words";
import { Empty } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Card, Field, Time } from "@/ui/parts";
import { Table } from "@/ui/table";
import { useLater } from "@/ui/use-later";

const ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export default function Audit() {
  const [kind, setKind] = useState("");
  const [who, setWho] = useState("");
  const [where, setWhere] = useState<"job" | "node" | "account">("job");
  const asked = useLater(JSON.stringify({ kind: kind.trim() || undefined, ...(ID.test(who.trim()) ? { [where]: who.trim() } : {}) }));
  const events = useInfiniteQuery({
    queryKey: ["operator", "events", asked],
    queryFn: ({ pageParam }) => searchEvents({ ...(JSON.parse(asked) as object), before: pageParam }),
    initialPageParam: undefined as number | undefined,
    getNextPageParam: (page) => page.before ?? undefined,
  });
  return (
    <Card title="Audit" flush>
      <div className="grid max-w-3xl gap-4 px-4 pb-4 sm:grid-cols-3 sm:px-5">
        <Field label="Kind">{(props) => <input {...props} value={kind} onChange={(event) => setKind(event.target.value)} placeholder="such as job_submitted" />}</Field>
        <Field label="Of a">
          {(props) => (
            <select {...props} value={where} onChange={(event) => setWhere(event.target.value as typeof where)}>
              <option>job</option>
              <option>node</option>
              <option>account</option>
            </select>
          )}
        </Field>
        <Field label="Its id">{(props) => <input {...props} value={who} onChange={(event) => setWho(event.target.value)} placeholder="whole id" />}</Field>
      </div>
      <Paged query={events} itemsOf={(page) => page.events} empty={<Empty title="Nothing like that happened" />}>
        {(items) => (
          <Table
            label="Events"
            rows={items}
            keyOf={(event) => String(event.id)}
            columns={[
              { name: "What", cell: (event) => <span className="font-medium">{event.kind}</span> },
              { name: "Job", cell: (event) => <Whereabouts page="job" id={event.job_id} /> },
              { name: "Node", cell: (event) => <Whereabouts page="node" id={event.node_id} /> },
              { name: "More", wide: true, cell: (event) => <code className="block max-w-[40rem] truncate font-mono text-xs text-soft" title={JSON.stringify(event.body)}>{JSON.stringify(event.body)}</code> },
              { name: "When", right: true, cell: (event) => <Time at={event.at} /> },
            ]}
          />
        )}
      </Paged>
    </Card>
  );
}

/** To where it can be looked at, and stopped. */
function Whereabouts({ page, id }: { page: "job" | "node"; id: string | null | undefined }) {
  if (!id) return <>–</>;
  return (
    <Link href={`/${page}/?id=${id}`} title={id} className="underline decoration-line-strong underline-offset-4 hover:decoration-current">
      {showId(id)}
    </Link>
  );
}
