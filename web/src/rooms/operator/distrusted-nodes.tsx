"use client";
// Nodes that are not clear: what was found wrong, by whom, and the way back.

import { useInfiniteQuery } from "@tanstack/react-query";
import Link from "next/link";
import { listDistrustedNodes, type DistrustedNode } from "@/lib/api/gateway";
import { countOf, showCount, showEnum, showId, showTier } from "@/lib/words";
import { Block, Empty } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Badge, Card, Time } from "@/ui/parts";
import { Table } from "@/ui/table";

export default function DistrustedNodes() {
  const nodes = useInfiniteQuery({
    queryKey: ["operator", "distrusted-nodes"],
    queryFn: ({ pageParam }) => listDistrustedNodes({ limit: 20, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: 30_000,
  });
  return (
    <Card title="Distrusted nodes" note="whose results were wrong" flush>
      <Paged
        query={nodes}
        itemsOf={(page) => page.nodes}
        // As high as the words below, which stand here most of the time.
        loading={<div className="px-6 py-4"><Block className="h-[9.75rem]" /></div>}
        empty={<Empty title="Every node is clear">A node whose results were wrong is listed here, with what was found and its way back.</Empty>}
      >
        {(items) => (
          <Table
            label="Distrusted nodes"
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
              { name: "Standing", cell: (node) => <Standing node={node} /> },
              { name: "What it got wrong", cell: (node) => <Evidence node={node} /> },
              { name: "Since", right: true, cell: (node) => <Time at={node.since} /> },
            ]}
          />
        )}
      </Paged>
    </Card>
  );
}

function Standing({ node }: { node: DistrustedNode }) {
  return (
    <div className="min-w-40" title={node.words}>
      <Badge state={node.standing} />
      <span className="block text-sm text-soft">
        {node.back_at ? (
          <>
            way back begins <Time at={node.back_at} />
          </>
        ) : node.results_missing ? (
          `${countOf(node.results_missing, "right result")} to go`
        ) : (
          `bugged ${countOf(node.bugged_count, "time")}`
        )}
      </span>
    </div>
  );
}

function Evidence({ node }: { node: DistrustedNode }) {
  return (
    <details className="min-w-56">
      <summary className="cursor-pointer">
        {node.wrong_spans.length ? `${countOf(node.wrong_spans.length, "span")} that others got otherwise` : `${showCount(node.wrong_count)} of its last ${countOf(node.checked_count, "checked result")}`}
      </summary>
      <ul className="mt-2 grid gap-2 text-sm whitespace-normal">
        <li className="border-l-2 border-line pl-3">{node.words}</li>
        {node.checked_count ? (
          <li className="border-l-2 border-line pl-3">
            of its last {countOf(node.checked_count, "checked result")} of jobs, {showCount(node.wrong_count)} wrong; {showCount(node.validated_count)} validated in all
          </li>
        ) : null}
        {node.speed ? (
          <li className="border-l-2 border-line pl-3">
            speed of {node.speed.slot}: {showEnum(node.speed.state)}, claimed as {showTier(node.speed.claimed_tier)}
            {node.speed.reason ? `: ${node.speed.reason}` : ""}
            <span className="block text-soft">
              decided <Time at={node.speed.decided_at} />
            </span>
          </li>
        ) : null}
        {node.wrong_spans.map((span) => (
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
