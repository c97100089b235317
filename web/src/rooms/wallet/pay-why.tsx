"use client";
// Why this payment: every attempt of a node on a day, what it should pay by the rules, and what the ledger moved.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { getPayWhy, listNodes } from "@/lib/api/gateway";
import { showDuration } from "@/lib/words";
import { Ask, Empty } from "@/ui/faces";
import { Amount, Badge, Card, Field } from "@/ui/parts";
import { useAccount } from "@/ui/providers";
import { Table } from "@/ui/table";

export function PayWhyCard() {
  const account = useAccount();
  const nodes = useQuery({ queryKey: ["nodes", "for-pay"], queryFn: () => listNodes({ limit: 100 }), enabled: Boolean(account?.roles.includes("owner")) });
  const [node, setNode] = useState("");
  const [day, setDay] = useState(() => new Date().toISOString().slice(0, 10));
  const chosen = node || (nodes.data?.nodes[0]?.id ?? "");
  const why = useQuery({ queryKey: ["credits", "why", chosen, day], queryFn: () => getPayWhy(chosen, day), enabled: Boolean(chosen && day) });
  if (!nodes.data?.nodes.length) return null;
  return (
    <Card title="Why this payment" note="a node's day, attempt by attempt" flush>
      <div className="grid max-w-xl gap-4 px-4 pb-4 sm:grid-cols-2 sm:px-5">
        <Field label="Node">
          {(props) => (
            <select {...props} value={chosen} onChange={(event) => setNode(event.target.value)}>
              {nodes.data.nodes.map((each) => (
                <option key={each.id} value={each.id}>
                  {each.name}
                </option>
              ))}
            </select>
          )}
        </Field>
        <Field label="Day (UTC)">{(props) => <input {...props} type="date" value={day} onChange={(event) => setDay(event.target.value)} />}</Field>
      </div>
      <Ask query={why} isEmpty={(found) => !found.attempts.length} empty={<Empty title="It ended nothing on that day" />}>
        {(found) => (
          <Table
            label="Pay by attempt"
            rows={found.attempts}
            keyOf={(each) => each.attempt_id}
            columns={[
              { name: "Why", cell: (each) => <span className="block md:min-w-64">{each.words}</span> },
              { name: "Mark", cell: (each) => <Badge state={each.mark} /> },
              { name: "Metered", right: true, wide: true, cell: (each) => (each.metered_seconds === null || each.metered_seconds === undefined ? "–" : showDuration(each.metered_seconds)) },
              { name: "Due", right: true, wide: true, cell: (each) => <Amount of={each.due_to_owner_microcredits} exact column /> },
              { name: "Earned", right: true, cell: (each) => <Amount of={each.earned_microcredits} exact column /> },
            ]}
          />
        )}
      </Ask>
    </Card>
  );
}
