"use client";
// For operators: health, charts of queue and fleet, what waits for a decision, nodes whose results were wrong, accounts, and the audit search.

import { useQuery } from "@tanstack/react-query";
import dynamic from "next/dynamic";
import { useState } from "react";
import { getHistory, getOverview } from "@/lib/api/gateway";
import { countOf, showCount } from "@/lib/words";
import { LineChart } from "@/ui/charts";
import { Ask, Block, Empty, Room } from "@/ui/faces";
import { Badge, Card, Choice, LinkButton, Page, Stat } from "@/ui/parts";
import { useAccount, usePoll } from "@/ui/providers";

const Accounts = dynamic(() => import("./accounts"), { ssr: false, loading: () => <Block className="h-64" /> });
const Decisions = dynamic(() => import("./decisions"), { ssr: false, loading: () => <Block className="h-64" /> });
const DistrustedNodes = dynamic(() => import("./distrusted-nodes"), { ssr: false, loading: () => <Block className="h-60" /> });
const Audit = dynamic(() => import("./audit"), { ssr: false, loading: () => <Block className="h-64" /> });

export function OperatorPage() {
  return (
    <Page title="Operator">
      <Room>
        <Rooms />
      </Room>
    </Page>
  );
}

function Rooms() {
  const account = useAccount();
  if (!account?.roles.includes("operator")) return <Empty title="This page does not exist" action={<LinkButton href="/">To the grid</LinkButton>} />;
  return (
    <div className="grid gap-6">
      <Health />
      <Charts />
      <Decisions />
      <DistrustedNodes />
      <Accounts />
      <Audit />
    </div>
  );
}

function Health() {
  const poll = usePoll();
  const overview = useQuery({ queryKey: ["operator", "overview"], queryFn: getOverview, refetchInterval: poll || 5_000 });
  return (
    <Card title="Health">
      <Ask query={overview} loading={<Block className="h-[18.875rem] sm:h-40 xl:h-24" />}>
        {(found) => (
          <div className="grid gap-5">
            <p className="flex flex-wrap items-center gap-x-4 gap-y-1">
              <Badge tone={found.database_ms < 100 ? "ok" : "wait"}>database {found.database_ms.toFixed(1)} ms</Badge>
              <Badge tone={found.feed.watermark_seconds < 5 ? "ok" : "wait"}>feed {found.feed.watermark_seconds.toFixed(1)} s behind</Badge>
              <span className="text-soft">
                version {found.version}, {countOf(found.hub_processes, "hub process", "hub processes")}, {showCount(found.feed.viewers)} watching
              </span>
            </p>
            <dl className="grid grid-cols-2 gap-4 sm:grid-cols-4 xl:grid-cols-8">
              <Stat name="Nodes online" value={showCount(found.counts.nodes_online)} unit={`of ${showCount(found.counts.nodes)}`} />
              <Stat name="Slots busy" value={showCount(found.counts.busy_slots)} unit={`of ${showCount(found.counts.slots)}`} />
              <Stat name="Slices queued" value={showCount(found.counts.slices_queued)} />
              <Stat name="Jobs running" value={showCount(found.counts.jobs_running)} />
              <Stat name="Accounts" value={showCount(found.accounts)} note={found.accounts_suspended ? `${found.accounts_suspended} suspended` : null} />
              <Stat name="Payouts to decide" value={showCount(found.payouts_waiting)} />
              <Stat name="Disputes open" value={showCount(found.disputes_open)} />
              <Stat name="Frozen accounts" value={showCount(found.freezes)} />
            </dl>
          </div>
        )}
      </Ask>
    </Card>
  );
}

// The same while they load and on a young hub: what stands below does not jump.
const CHARTS_HEIGHT = "h-[552px] xl:h-[264px]";
const SPANS = ["1", "24", "168"] as const;
const SPAN_NAMES = { "1": "Hour", "24": "Day", "168": "Week" };

function Charts() {
  const [span, setSpan] = useState<(typeof SPANS)[number]>("24");
  const history = useQuery({ queryKey: ["operator", "history", span], queryFn: () => getHistory(Number(span)), refetchInterval: 60_000 });
  const showX = (x: number) => (span === "168" ? new Date(x).toLocaleDateString(undefined, { weekday: "short", day: "numeric" }) : new Date(x).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" }));
  const showY = (y: number) => showCount(Math.round(y));
  return (
    <Card title="Fleet and queue" action={<Choice label="Span" value={span} options={SPANS} onChange={setSpan} show={(each) => SPAN_NAMES[each]} />}>
      <Ask query={history} loading={<Block className={CHARTS_HEIGHT} />} isEmpty={(found) => found.points.length < 2} empty={<div className={`grid content-start justify-center xl:content-center ${CHARTS_HEIGHT}`}><Empty title="Not enough history yet">A point is kept every minute.</Empty></div>}>
        {({ points }) => {
          const at = (pick: (point: (typeof points)[number]) => number) => points.map((point) => ({ x: point.at.getTime(), y: pick(point) }));
          return (
            <div className="grid gap-6 xl:grid-cols-2">
              <LineChart label="Slots, and slots that are busy" from={0} whole showX={showX} showY={showY} series={[{ name: "Slots", colour: "var(--idle)", step: true, points: at((point) => point.slots) }, { name: "Busy", colour: "var(--busy)", step: true, area: true, points: at((point) => point.busy_slots) }, { name: "Nodes online", colour: "var(--accent)", step: true, points: at((point) => point.nodes_online) }]} />
              <LineChart label="Slices that wait" from={0} whole showX={showX} showY={showY} series={[{ name: "Slices queued", colour: "var(--wait)", step: true, area: true, points: at((point) => point.slices_queued) }]} />
            </div>
          );
        }}
      </Ask>
    </Card>
  );
}
