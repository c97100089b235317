"use client";
// The caller's machines; an operator's list holds everyone's.

import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { listNodes, type Node } from "@/lib/api/gateway";
import { showBytes } from "@/lib/words";
import { Empty, Room } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Badge, Card, Choice, Field, LinkButton, Page, Price, Tier, Time } from "@/ui/parts";
import { usePoll } from "@/ui/providers";
import { Table, type Column } from "@/ui/table";
import { useLater } from "@/ui/use-later";
import { listTiers, standingOf } from "./node.model";

const SHOWN = ["all", "online", "offline"] as const;
const PAGE = 50;

export function NodesPage() {
  return (
    <Page title="Nodes" lead="Machines that you lend. An operator sees everyone's." actions={<LinkButton look="main" href="/join/">Lend a machine</LinkButton>}>
      <Room>
        <Nodes />
      </Room>
    </Page>
  );
}

function Nodes() {
  const [shown, setShown] = useState<(typeof SHOWN)[number]>("all");
  const [name, setName] = useState("");
  const sought = useLater(name.trim());
  const poll = usePoll();
  const nodes = useInfiniteQuery({
    queryKey: ["nodes", shown, sought],
    queryFn: ({ pageParam }) => listNodes({ limit: PAGE, cursor: pageParam, online: shown === "all" ? undefined : shown === "online", name: sought || undefined }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: poll,
    placeholderData: keepPreviousData,
  });
  const filtered = shown !== "all" || Boolean(sought);
  return (
    <Card flush>
      <div className="flex flex-wrap items-end justify-between gap-3 border-b border-line p-4 sm:px-5">
        <Choice label="Shown" value={shown} options={SHOWN} onChange={setShown} />
        <div className="w-full sm:w-64">
          <Field label="Find by name">{(props) => <input {...props} type="search" value={name} onChange={(event) => setName(event.target.value)} placeholder="name contains" />}</Field>
        </div>
      </div>
      <Paged
        query={nodes}
        itemsOf={(page) => page.nodes}
        empty={
          filtered ? (
            <Empty title="No node is like that">Change the filter to see others.</Empty>
          ) : (
            <Empty title="You lend no machine yet" action={<LinkButton look="main" href="/join/">Lend one</LinkButton>}>
              A machine earns credits while it runs jobs of others, in a sandbox, on your terms.
            </Empty>
          )
        }
      >
        {(items) => <Table label="Nodes" rows={items} keyOf={(node) => node.id} hrefOf={(node) => `/node/?id=${node.id}`} columns={COLUMNS} />}
      </Paged>
    </Card>
  );
}

const COLUMNS: Column<Node>[] = [
  { name: "Name", cell: (node) => <span className="inline-block max-w-64 truncate align-bottom">{node.name}</span> },
  { name: "State", cell: (node) => <Badge state={standingOf(node)} /> },
  { name: "Tiers", cell: (node) => <span className="flex flex-wrap gap-x-3">{listTiers(node).map((tier) => <Tier key={tier} tier={tier} />)}</span> },
  { name: "Slots", right: true, cell: (node) => <>{node.slots.filter((slot) => slot.busy).length} / {node.slots.length}<span className="max-sm:hidden"> busy</span></> },
  { name: "RAM", right: true, wide: true, cell: (node) => showBytes(node.hardware.ram_bytes) },
  { name: "Region", wide: true, cell: (node) => node.region ?? <span className="text-soft">not told</span> },
  { name: "Floor", right: true, wide: true, cell: (node) => <Price of={node.offer.floor_microcredits_per_hour} /> },
  { name: "Last seen", right: true, wide: true, cell: (node) => <Time at={node.last_seen_at} /> },
];
