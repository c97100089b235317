"use client";
// Nodes that computed wrongly for networks, with what others got when they computed it again.

import { useInfiniteQuery } from "@tanstack/react-query";
import Link from "next/link";
import { listBuggedNodes, type BuggedNode } from "@/lib/api/gateway";
import { countOf, showCount, showId } from "@/lib/words";
import { Empty } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Badge, Card, Time } from "@/ui/parts";
import { useNow } from "@/ui/providers";
import { Table } from "@/ui/table";

export default function BuggedNodes() {
  const nodes = useInfiniteQuery({
    queryKey: ["operator", "bugged-nodes"],
    queryFn: ({ pageParam }) => listBuggedNodes({ limit: 20, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: 30_000,
  });
  return (
    <Card title="Bugged nodes" note="found wrong by audits of networks" flush>
      <Paged query={nodes} itemsOf={(page) => page.nodes} empty={<Empty title="Nobody was found wrong">A node that computes wrongly twice in fifty audits gets no seats for a week, and is listed here.</Empty>}>
        {(items) => (
          <Table
            label="Bugged nodes"
            rows={items}
            keyOf={(node) => node.node_id}
            columns={[
              {
                name: "Node",
                cell: (node) => (
                  <Link className="block max-w-56 truncate font-medium hover:underline" href={`/node/?id=${node.node_id}`} title={node.node_id}>
                    {node.node_name}
                  </Link>
                ),
              },
              { name: "Owner", wide: true, cell: (node) => <span title={node.owner_id}>{showId(node.owner_id)}</span> },
              { name: "What it got wrong", cell: (node) => <Evidence node={node} /> },
              { name: "Since", right: true, cell: (node) => <Time at={node.bugged_at} /> },
              { name: "Seats", right: true, cell: (node) => <Standing node={node} /> },
            ]}
          />
        )}
      </Paged>
    </Card>
  );
}

function Standing({ node }: { node: BuggedNode }) {
  const now = useNow();
  if (now && node.until.getTime() <= now) return <Badge tone="wait">allowed again</Badge>;
  return (
    <span className="whitespace-nowrap">
      <Badge tone="bad">none</Badge> <span className="text-soft">until</span> <Time at={node.until} />
    </span>
  );
}

function Evidence({ node }: { node: BuggedNode }) {
  if (!node.evidence.length) return <span className="text-soft">its records are gone</span>;
  return (
    <details className="min-w-56">
      <summary className="cursor-pointer">{countOf(node.evidence.length, "span")} that others got otherwise</summary>
      <ul className="mt-2 grid gap-2 text-sm whitespace-normal">
        {node.evidence.map((span) => (
          <li key={`${span.run_id} ${span.seat} ${span.until_step} ${span.decided_at.getTime()}`} className="border-l-2 border-line pl-3">
            steps {showCount(span.from_step)} to {showCount(span.until_step)} of run <span title={span.run_id}>{showId(span.run_id)}</span>, {span.seat}: {span.message}
            <span className="block text-soft">
              computed again by {countOf(span.witness_count, "other")}, decided <Time at={span.decided_at} />
            </span>
          </li>
        ))}
      </ul>
    </details>
  );
}
