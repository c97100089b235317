"use client";
// One run: the loss as it falls, who holds what, and everything that went wrong and was mended.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { getNetwork, getRun, getRunFeed, listCheckpoints, stopRun, type RunDetail, type RunLine } from "@/lib/api/gateway";
import { showBytes, showCount, showId } from "@/lib/words";
import { CAPTION_HEIGHT, LineChart, type Mark } from "@/ui/charts";
import { Confirm } from "@/ui/confirm";
import { Ask, Block, Empty, Room } from "@/ui/faces";
import { Badge, Card, Choice, LinkButton, Page, Stat, Time } from "@/ui/parts";
import { useLive, usePoll } from "@/ui/providers";
import { Table } from "@/ui/table";
import { complain, say } from "@/ui/toasts";
import { useIdParam } from "@/ui/use-query-param";
import { addLive, addPage, countRecoveries, pickMarks, shortenIds, showLoss, thin, type Feed } from "./run.model";
import { VNodeGraph } from "./vnode-graph";

const ENDED = new Set(["succeeded", "failed", "stopped"]);
const POINTS_MAX = 600;
const CURVE_HEIGHT = 320;
const MARKS_MAX = 40;
const ROUTINE_MARKS_MAX = 2;
const MARK_COLOURS: Record<string, string> = { failure: "var(--bad)", recovery: "var(--ok)", placement: "var(--busy)" };

export function RunPage() {
  const id = useIdParam();
  if (!id) {
    return (
      <Page title="Run">
        <Empty title="No such run" action={<LinkButton href="/networks/">All runs</LinkButton>} />
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
  const run = useQuery({ queryKey: ["run", id], queryFn: () => getRun(id), refetchInterval: poll || 3_000 });
  if (run.data) return <Detail detail={run.data} />;
  return (
    <Page title="Run">
      <Card flush>
        <Ask query={run}>{() => null}</Ask>
      </Card>
    </Page>
  );
}

function Detail({ detail }: { detail: RunDetail }) {
  const { run } = detail;
  const queries = useQueryClient();
  const lines = useLines(run.id, ENDED.has(run.state));
  const stop = useMutation({
    mutationFn: () => stopRun(run.id),
    onSuccess: (changed) => {
      queries.setQueryData(["run", run.id], changed);
      say("It stops after its next checkpoint.");
    },
    onError: complain,
  });
  const last = lines.findLast((line) => line.kind === "step" && line.loss !== null);
  return (
    <Page
      title={run.network_name}
      lead={
        <span className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <Badge state={run.state} />
          <span title={run.id}>{showId(run.id)}</span>
          <span>
            started <Time at={run.created_at} />
          </span>
          {run.message ? <span>{run.message}</span> : null}
        </span>
      }
      actions={
        ENDED.has(run.state) ? null : (
          <Confirm trigger="Stop" title="Stop this run?" action="Stop the run" disabled={stop.isPending} onConfirm={() => stop.mutate()}>
            It keeps its last checkpoint and can be resumed from the command line.
          </Confirm>
        )
      }
    >
      <div className="grid gap-6">
        <Card>
          <dl className="grid grid-cols-2 gap-4 sm:grid-cols-3 lg:grid-cols-6">
            <Stat name="Step" value={showCount(run.step)} unit={`of ${showCount(run.steps)}`} />
            <Stat name="Loss" value={last?.loss === undefined || last.loss === null ? "–" : showLoss(last.loss)} />
            <Stat name="Speed" value={last?.samples_per_second ? last.samples_per_second.toFixed(1) : "–"} unit="samples/s" />
            <Stat name="Last checkpoint" value={<><span className="text-sm font-normal text-soft">step </span>{showCount(run.checkpoint_step)}</>} />
            <Stat name="Recoveries" value={showCount(countRecoveries(lines))} />
            <Stat name="Same bits as one machine" value={run.inexact_from_step ? `until step ${run.inexact_from_step}` : "yes"} />
          </dl>
        </Card>
        <Curve lines={lines} />
        <div className="grid gap-6 xl:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
          <Graph detail={detail} />
          <Marks lines={lines} />
        </div>
        <div className="grid gap-6 xl:grid-cols-2">
          <Seats detail={detail} />
          <Checkpoints runId={run.id} />
        </div>
      </div>
    </Page>
  );
}

/** The whole feed, page by page, then what the stream brings; a gap in the stream is asked for. */
function useLines(runId: string, ended: boolean): RunLine[] {
  const poll = usePoll();
  const [lines, setLines] = useState<RunLine[]>([]);
  const feed = useRef<Feed<RunLine>>({ lines: [], after: 0 });
  const take = (next: Feed<RunLine>) => {
    feed.current = next;
    setLines(next.lines);
  };
  useEffect(() => {
    let gone = false;
    let timer = 0;
    const load = async () => {
      try {
        const page = await getRunFeed(runId, feed.current.after);
        if (gone) return;
        take(addPage(feed.current, page.lines));
        const more = page.lines.length >= 500;
        if (more || !ended) timer = window.setTimeout(() => void load(), more ? 0 : poll ? 2_000 : 5_000);
      } catch {
        if (!gone) timer = window.setTimeout(() => void load(), 3_000);
      }
    };
    void load();
    return () => {
      gone = true;
      window.clearTimeout(timer);
    };
  }, [runId, ended, poll]);
  useLive({ frame: (frame) => frame.runs.filter((run) => run.run_id === runId).forEach((run) => take(addLive(feed.current, run.lines))) }, { run: runId });
  return lines;
}

const CURVES = {
  loss: { name: "Loss", colour: "var(--accent)", of: (line: RunLine) => line.loss ?? null, show: showLoss },
  throughput: { name: "Samples per second", colour: "var(--busy)", of: (line: RunLine) => line.samples_per_second || null, show: (y: number) => y.toFixed(y < 10 ? 1 : 0) },
};

const showStep = (x: number) => `step ${showCount(Math.round(x))}`;

function Curve({ lines }: { lines: RunLine[] }) {
  const [what, setWhat] = useState<keyof typeof CURVES>("loss");
  const [scale, setScale] = useState<"linear" | "log">("linear");
  const curve = CURVES[what];
  const points = useMemo(() => {
    const told = lines.flatMap((line) => {
      const y = line.kind === "step" ? CURVES[what].of(line) : null;
      return y === null ? [] : [{ x: line.step, y }];
    });
    return thin(told, POINTS_MAX);
  }, [lines, what]);
  const marks = useMemo<Mark[]>(() => lines.filter((line) => MARK_COLOURS[line.kind]).map((line) => ({ x: line.step, label: `${line.kind}, step ${line.step}: ${line.message}`, colour: MARK_COLOURS[line.kind] ?? "var(--soft)" })), [lines]);
  return (
    <Card
      title={what === "loss" ? "Loss" : "Throughput"}
      note="failures and recoveries as marks"
      action={
        <span className="flex flex-wrap gap-2">
          <Choice label="Curve" value={what} options={["loss", "throughput"] as const} onChange={setWhat} />
          <Choice label="Scale" value={scale} options={["linear", "log"] as const} onChange={setScale} />
        </span>
      }
    >
      {/* As high before the first steps as with them: nothing below moves when they come. */}
      <div className="grid content-center" style={{ minHeight: CURVE_HEIGHT + CAPTION_HEIGHT }}>
        {points.length > 1 ? (
          <LineChart label={`${curve.name} by step`} height={CURVE_HEIGHT} log={scale === "log"} marks={marks} series={[{ name: curve.name, colour: curve.colour, area: scale === "linear", points }]} showX={showStep} showY={curve.show} />
        ) : (
          <Empty title="No steps yet">The curve begins with the first two.</Empty>
        )}
      </div>
    </Card>
  );
}

function Graph({ detail }: { detail: RunDetail }) {
  const network = useQuery({ queryKey: ["network", detail.run.network_id], queryFn: () => getNetwork(detail.run.network_id), staleTime: Infinity });
  return (
    <Card title="VNodes" note="colour: the machine that holds it">
      <Ask query={network} loading={<Block className="h-64" />}>
        {(found) => <VNodeGraph network={found} detail={detail} />}
      </Ask>
    </Card>
  );
}

function Marks({ lines }: { lines: RunLine[] }) {
  const marks = useMemo(() => pickMarks(lines, MARKS_MAX, ROUTINE_MARKS_MAX), [lines]);
  return (
    <Card title="What happened" flush>
      <div className="h-80">
        {marks.length ? (
          <ol className="h-full overflow-auto" tabIndex={0} aria-label="What happened">
            {marks.map((line) => (
              <li key={line.id} className="grid grid-cols-[6rem_1fr_max-content] gap-3 border-b border-line px-4 py-2 text-sm last:border-0 sm:px-5">
                <span style={{ color: MARK_COLOURS[line.kind] ?? "var(--soft)" }}>{line.kind}</span>
                <span className="min-w-0 break-words">
                  {shortenIds(line.message)} {line.message.includes(`step ${line.step} `) ? null : <span className="text-soft">step {showCount(line.step)}</span>}
                </span>
                <Time at={line.at} />
              </li>
            ))}
          </ol>
        ) : (
          <Empty title="Nothing yet" />
        )}
      </div>
    </Card>
  );
}

function Seats({ detail }: { detail: RunDetail }) {
  return (
    <Card title="Seats" flush>
      {detail.seats.length ? (
        <Table
          label="Seats"
          rows={detail.seats}
          keyOf={(seat) => seat.seat}
          columns={[
            { name: "Seat", cell: (seat) => seat.seat },
            { name: "Node", cell: (seat) => (seat.node_id ? showId(seat.node_id) : "nobody yet") },
            { name: "Computes like", wide: true, cell: (seat) => <span className="text-sm text-soft">{seat.numeric_class}</span> },
            { name: "VNodes", right: true, cell: (seat) => showCount(detail.placements.filter((each) => each.seat === seat.seat).length) },
          ]}
        />
      ) : (
        <Empty title="Nobody sits yet" />
      )}
      {detail.why.map((text) => (
        <p key={text} className="px-4 pb-3 text-sm text-soft sm:px-5">
          {text}
        </p>
      ))}
    </Card>
  );
}

function Checkpoints({ runId }: { runId: string }) {
  const checkpoints = useQuery({ queryKey: ["run", runId, "checkpoints"], queryFn: () => listCheckpoints(runId), refetchInterval: 10_000 });
  return (
    <Card title="Checkpoints" flush>
      <Ask query={checkpoints} isEmpty={(page) => !page.checkpoints.length} empty={<Empty title="None yet" />}>
        {(page) => (
          <Table
            label="Checkpoints"
            rows={page.checkpoints.slice(-8).reverse()}
            keyOf={(each) => String(each.step)}
            columns={[
              { name: "Step", cell: (each) => showCount(each.step) },
              { name: "State", cell: (each) => <Badge tone={each.complete_at ? "ok" : "wait"}>{each.complete_at ? "complete" : "arriving"}</Badge> },
              { name: "Size", right: true, cell: (each) => showBytes(each.size_bytes) },
              { name: "At", right: true, cell: (each) => <Time at={each.complete_at ?? each.first_at} /> },
            ]}
          />
        )}
      </Ask>
    </Card>
  );
}
