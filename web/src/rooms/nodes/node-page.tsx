"use client";
// One machine: what it is, what it does, what it earns, on which terms, and why it is idle.

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import dynamic from "next/dynamic";
import { drainNode, getNode, getNodeEarnings, getNodeTrust, getNodeWhy, listNodeAttempts, pauseNode, removeNode, resumeNode, type Attempt, type Node } from "@/lib/api/gateway";
import { showCredits, toPlot } from "@/lib/money";
import { countOf, showBytes, showDuration, showEnum, showId, showTier } from "@/lib/words";
import { Bars } from "@/ui/charts";
import { Confirm } from "@/ui/confirm";
import { Ask, Block, Empty, Room } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Amount, Badge, Button, Card, LinkButton, Page, Price, Stat, Tier, Time } from "@/ui/parts";
import { usePoll } from "@/ui/providers";
import { Table, type Column } from "@/ui/table";
import { complain, say } from "@/ui/toasts";
import { useIdParam } from "@/ui/use-query-param";
import { Ending } from "../jobs/attempts";
import { fillDays, showBonus, standingOf } from "./node.model";

const OfferForm = dynamic(() => import("./offer-form"), { ssr: false, loading: () => <Block className="h-64" /> });
const DAYS = 30;

export function NodePage() {
  const id = useIdParam();
  if (!id) {
    return (
      <Page title="Node">
        <Empty title="No such node" action={<LinkButton href="/nodes/">All nodes</LinkButton>} />
      </Page>
    );
  }
  return (
    <Room>
      <Found id={id} />
    </Room>
  );
}

function Found({ id }: { id: string }) {
  const poll = usePoll();
  const node = useQuery({ queryKey: ["node", id], queryFn: () => getNode(id), refetchInterval: poll });
  if (node.data) return <Detail node={node.data} />;
  return (
    <Page title="Node">
      <Card flush>
        <Ask query={node}>{() => null}</Ask>
      </Card>
    </Page>
  );
}

function Detail({ node }: { node: Node }) {
  const { hardware } = node;
  return (
    <Page
      title={node.name}
      lead={
        <span className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <Badge state={standingOf(node)} />
          <span title={node.id}>{showId(node.id)}</span>
          <span>
            seen <Time at={node.last_seen_at} />
          </span>
          {node.synthetic ? <span>played by software</span> : null}
        </span>
      }
      actions={<Actions node={node} />}
    >
      <div className="grid gap-6 xl:grid-cols-2">
        <Card title="Hardware">
          <dl className="grid grid-cols-2 gap-4 sm:grid-cols-4">
            <Stat name="Cores" value={hardware.cores} />
            <Stat name="RAM" value={showBytes(hardware.ram_bytes)} />
            <Stat name="Disk" value={showBytes(hardware.disk_bytes)} />
            <Stat name="Region" value={node.region ?? "not told"} />
          </dl>
          <p className="mt-4 text-soft">
            {hardware.cpu_name || "A processor without a name"}
            {hardware.gpus.map((gpu) => `, ${gpu.name} with ${showBytes(gpu.vram_bytes)}`).join("")}. Isolation: {node.isolation}. Agent {node.agent_version || "unknown"}.
          </p>
        </Card>
        <WhyIdle node={node} />
      </div>
      <div className="mt-6 grid gap-6">
        <Card title="Slots" flush>
          <Table
            label="Slots"
            rows={node.slots}
            keyOf={(slot) => slot.name}
            columns={[
              { name: "Slot", cell: (slot) => slot.name },
              { name: "Tier", cell: (slot) => <Tier tier={slot.tier} /> },
              { name: "State", cell: (slot) => <Badge state={slot.busy ? "working" : "active"}>{slot.busy ? "working" : "free"}</Badge> },
              { name: "Cores", right: true, cell: (slot) => slot.cores },
              { name: "RAM", right: true, cell: (slot) => showBytes(slot.ram_bytes) },
              { name: "GPU memory", right: true, wide: true, cell: (slot) => (slot.vram_bytes ? showBytes(slot.vram_bytes) : "–") },
              { name: "Speed", right: true, wide: true, cell: (slot) => (slot.speed_tflops ? `${slot.speed_tflops.toFixed(1)} TFLOPS` : "not told") },
            ]}
          />
        </Card>
        <div className="grid gap-6 xl:grid-cols-2">
          <Earned node={node} />
          <Card title="Terms" note="at which it is lent">
            <OfferForm node={node} />
            <p className="mt-4 text-sm text-soft">
              Comfort rules (when you sit at it, on battery, at which hours) stay on the machine, in its <code className="font-mono">comfort.toml</code>. The hub is not told them: it hears only that the machine is yours for now.
            </p>
          </Card>
        </div>
        <Trust node={node} />
        <Work node={node} />
      </div>
    </Page>
  );
}

function Actions({ node }: { node: Node }) {
  const queries = useQueryClient();
  const keep = (changed: Node) => queries.setQueryData(["node", node.id], changed);
  const act = useMutation({
    mutationFn: ({ call }: { call: (id: string) => Promise<Node>; words: string }) => call(node.id),
    onSuccess: (changed, { words }) => {
      keep(changed);
      say(words);
    },
    onError: complain,
  });
  if (node.state === "removed") return null;
  return (
    <>
      {node.state === "active" ? (
        <>
          <Button disabled={act.isPending} onClick={() => act.mutate({ call: drainNode, words: "Draining: it finishes what it runs and takes nothing new." })}>
            Drain
          </Button>
          <Button disabled={act.isPending} onClick={() => act.mutate({ call: pauseNode, words: "Paused: what it ran goes elsewhere." })}>
            Pause
          </Button>
        </>
      ) : (
        <Button look="main" disabled={act.isPending} onClick={() => act.mutate({ call: resumeNode, words: "It takes work again." })}>
          Resume
        </Button>
      )}
      <Confirm trigger="Remove" title={`Remove ${node.name}?`} action="Remove the node" disabled={act.isPending} onConfirm={() => act.mutate({ call: removeNode, words: "Removed." })}>
        What it runs goes elsewhere, and it must be enrolled anew to come back. What it earned stays yours.
      </Confirm>
    </>
  );
}

function WhyIdle({ node }: { node: Node }) {
  const poll = usePoll();
  const why = useQuery({ queryKey: ["node-part", node.id, "why"], queryFn: () => getNodeWhy(node.id), refetchInterval: poll || 10_000 });
  return (
    <Card title="Why">
      <Ask query={why} loading={<Block className="h-32" />}>
        {(found) => (
          <div className="grid gap-3">
            <p>{found.words}</p>
            <dl className="grid grid-cols-3 gap-4">
              <Stat name="Free slots" value={found.free_count} unit={`of ${found.slot_count}`} />
              <Stat name="Slices waiting" value={`${found.waiting_count}${found.waiting_is_more ? "+" : ""}`} />
              <Stat name="Would fit here" value={found.fitting_count} />
            </dl>
            {found.gates.length ? (
              <ul className="grid gap-1 text-sm">
                {found.gates.map((gate) => (
                  <li key={gate.gate}>
                    <span className="text-soft">{showEnum(gate.gate)}:</span> does not fit {countOf(gate.slice_count, "slice")}
                  </li>
                ))}
              </ul>
            ) : null}
            {found.offer_changes.map((change) => (
              <p key={change.gate} className="rounded-lg bg-accent-wash p-3">
                {change.words}
              </p>
            ))}
            {found.lower_floor ? (
              <p className="rounded-lg bg-accent-wash p-3">
                At a floor of <Price of={found.lower_floor.floor_microcredits_per_hour} />, {countOf(found.lower_floor.slice_count, "slice")} would fit.
              </p>
            ) : null}
          </div>
        )}
      </Ask>
    </Card>
  );
}

function Earned({ node }: { node: Node }) {
  const earned = useQuery({ queryKey: ["node-part", node.id, "earnings"], queryFn: () => getNodeEarnings(node.id, DAYS) });
  return (
    <Card title="Earned" note={`last ${DAYS} days`}>
      <Ask query={earned} loading={<Block className="h-56" />}>
        {(found) => (
          <div className="grid gap-4">
            <dl>
              <Stat name="In all" value={<Amount of={found.earned_microcredits} exact />} />
            </dl>
            <Bars label="Earned by day" bars={fillDays(found.days, DAYS, new Date()).map((day) => ({ name: day.day, value: toPlot(day.earned_microcredits), title: `${day.day}: ${showCredits(day.earned_microcredits)} credits in ${showDuration(day.seconds)}` }))} />
          </div>
        )}
      </Ask>
    </Card>
  );
}

function Trust({ node }: { node: Node }) {
  const poll = usePoll();
  const trust = useQuery({ queryKey: ["node-part", node.id, "trust"], queryFn: () => getNodeTrust(node.id), refetchInterval: poll || 10_000 });
  return (
    <Card title="Trust" note="in its results">
      <Ask query={trust} loading={<Block className="h-32" />}>
        {(found) => (
          <div className="grid gap-4">
            <p>
              <Badge state={found.standing} /> <span className="ml-1">{found.words}</span>
            </p>
            <dl className="grid grid-cols-2 gap-4 sm:grid-cols-4">
              <Stat name="Results checked" value={found.validated_count} />
              <Stat name="Right, at least" value={found.validated_count ? `${Math.floor(found.integrity * 100)} %` : "–"} />
              <Stat name="Share that is checked" value={`${Math.round(found.audit_rate * 100)} %`} />
              <Stat name="Right ones to go" value={found.results_missing} />
              <Stat name="Serving cleanly" value={found.serving_since ? <Time at={found.serving_since} /> : "not yet"} />
              <Stat name="Pay held back" value={showDuration(found.holdback_seconds ?? 0)} />
              <Stat name="Bonus" value={showBonus(found.bonus_ppm ?? 0)} />
              <Stat name="Pay that waits" value={<Amount of={found.pay_waiting_microcredits ?? 0n} />} />
            </dl>
            <p className="text-sm text-soft">{found.pay_words}</p>
            {found.recent.length ? (
              <ul aria-label="Last results that were checked" className="flex flex-wrap gap-1.5">
                {found.recent.map((each, index) => (
                  <li key={index} title={each.at.toLocaleString()}>
                    <Badge tone={each.right === true ? "ok" : each.right === false ? "bad" : "idle"}>{each.right === true ? "right" : each.right === false ? "wrong" : "not counted"}</Badge>
                  </li>
                ))}
              </ul>
            ) : null}
          </div>
        )}
      </Ask>
    </Card>
  );
}

const WORK: Column<Attempt>[] = [
  { name: "Job and slice", cell: (item) => <span className="figure whitespace-nowrap">{item.job_id ? showId(item.job_id) : "job"} · {item.slice_index}</span> },
  { name: "Slot", wide: true, cell: (item) => <span>{item.slot} <span className="text-soft">{item.tier ? showTier(item.tier) : ""}</span></span> },
  { name: "State", cell: (item) => <Ending attempt={item} /> },
  { name: "Ran", right: true, wide: true, cell: (item) => (item.run_seconds === null || item.run_seconds === undefined ? "–" : showDuration(item.run_seconds)) },
  { name: "Rate", right: true, wide: true, cell: (item) => (item.rate_microcredits_per_hour === null || item.rate_microcredits_per_hour === undefined ? "–" : <Price of={item.rate_microcredits_per_hour} />) },
  { name: "Leased", right: true, cell: (item) => <Time at={item.leased_at} /> },
];

function Work({ node }: { node: Node }) {
  const poll = usePoll();
  const attempts = useInfiniteQuery({
    queryKey: ["node-part", node.id, "attempts"],
    queryFn: ({ pageParam }) => listNodeAttempts(node.id, { limit: 20, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.cursor ?? undefined,
    refetchInterval: poll,
  });
  return (
    <Card title="Work" note="newest first" flush>
      <Paged query={attempts} itemsOf={(page) => page.attempts} empty={<Empty title="It has not worked yet" />}>
        {(items) => <Table label="Work of this node" rows={items} keyOf={(item) => item.id} columns={WORK} />}
      </Paged>
    </Card>
  );
}
