"use client";
// Networks that are cut over machines, and their runs.

import { useInfiniteQuery } from "@tanstack/react-query";
import { listNetworks, listRuns, type Network, type Run } from "@/lib/api/gateway";
import { showCount } from "@/lib/words";
import { Empty, Room } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Badge, Card, CopyBox, Page, ShareBar, Time } from "@/ui/parts";
import { usePoll } from "@/ui/providers";
import { Table, type Column } from "@/ui/table";

export function NetworksPage() {
  return (
    <Page title="Networks" lead="A neural network is cut into VNodes that live on many machines and train to the bits of one, whoever dies on the way.">
      <Room>
        <Lists />
      </Room>
    </Page>
  );
}

const RUNS: Column<Run>[] = [
  { name: "Run of", cell: (run) => <span className="inline-block max-w-64 truncate align-bottom">{run.network_name}</span> },
  { name: "State", cell: (run) => <Badge state={run.state} /> },
  { name: "Progress", wide: true, cell: (run) => <div className="w-40"><ShareBar label="Steps" parts={[{ name: "done", value: run.step, colour: "var(--accent)" }, { name: "to go", value: Math.max(0, run.steps - run.step), colour: "var(--line)" }]} /></div> },
  { name: "Step", right: true, cell: (run) => `${showCount(run.step)} / ${showCount(run.steps)}` },
  { name: "Epoch", right: true, wide: true, cell: (run) => showCount(run.epoch) },
  { name: "Started", right: true, wide: true, cell: (run) => <Time at={run.created_at} /> },
];

const NETWORKS: Column<Network>[] = [
  { name: "Name", cell: (network) => <span className="inline-block max-w-64 truncate align-bottom font-medium">{network.name}</span> },
  { name: "VNodes", right: true, cell: (network) => showCount(network.vnode_count) },
  { name: "Parameters", right: true, cell: (network) => showCount(network.parameter_count) },
  { name: "Stored", right: true, cell: (network) => <Time at={network.created_at} /> },
];

function Lists() {
  const poll = usePoll();
  const runs = useInfiniteQuery({
    queryKey: ["runs"],
    queryFn: ({ pageParam }) => listRuns({ limit: 30, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: poll || 5_000,
  });
  const networks = useInfiniteQuery({
    queryKey: ["networks"],
    queryFn: ({ pageParam }) => listNetworks({ limit: 30, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
  });
  return (
    <div className="grid gap-6">
      <Card title="Runs" flush>
        <Paged
          query={runs}
          itemsOf={(page) => page.runs}
          empty={
            <Empty title="No runs yet" action={<div className="w-full max-w-xl text-left"><CopyBox label="command" text="computepool net train network.yaml data.safetensors --steps 200 --seats 3" /></div>}>
              A run starts from the command line or from Python, and is watched here.
            </Empty>
          }
        >
          {(items) => <Table label="Runs" rows={items} keyOf={(run) => run.id} hrefOf={(run) => `/run/?id=${run.id}`} columns={RUNS} />}
        </Paged>
      </Card>
      <Card title="Networks" flush>
        <Paged query={networks} itemsOf={(page) => page.networks} empty={<Empty title="No networks yet" />}>
          {(items) => <Table label="Networks" rows={items} keyOf={(network) => network.id} columns={NETWORKS} />}
        </Paged>
      </Card>
    </div>
  );
}
