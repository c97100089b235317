"use client";
// A slice's log as it is written. Whatever stands in it is text.

import { useEffect, useRef, useState } from "react";
import { readLog, type Job } from "@/lib/api/gateway";
import { Badge, Card } from "@/ui/parts";
import { cutLog, plainLog } from "./logs.model";

const LOOK_SECONDS = 1;

interface Read {
  text: string;
  offset: number;
  attempt: number;
  complete: boolean;
  error: string | null;
}

const NOTHING: Read = { text: "", offset: 0, attempt: 0, complete: false, error: null };

export default function Logs({ job, slice, onSlice, ended }: { job: Job; slice: number; onSlice: (slice: number) => void; ended: boolean }) {
  const log = useLog(job.id, slice, ended);
  const box = useRef<HTMLPreElement>(null);
  const [follows, setFollows] = useState(true);
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log.text, follows]);
  return (
    <Card
      title="Log"
      note={log.attempt > 1 ? `attempt ${log.attempt}` : undefined}
      action={
        <span className="flex items-center gap-3 text-sm">
          {log.complete ? <Badge tone="idle">complete</Badge> : <Badge tone="busy">follows</Badge>}
          <label className="flex items-center gap-2">
            Slice
            <input type="number" min={0} max={job.slice_count - 1} value={slice} onChange={(event) => onSlice(Math.max(0, Math.min(job.slice_count - 1, Number(event.target.value) || 0)))} className="figure w-20 rounded-md border border-line-strong bg-surface px-2 py-1" />
          </label>
        </span>
      }
    >
      <pre
        ref={box}
        tabIndex={0}
        aria-label={`Log of slice ${slice}`}
        data-testid="log"
        onScroll={(event) => {
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
          setFollows(scrollHeight - scrollTop - clientHeight < 24);
        }}
        className="h-80 overflow-auto rounded-lg border border-line bg-raised p-3 font-mono text-[13px] leading-relaxed break-words whitespace-pre-wrap"
      >
        {log.text || <span className="text-soft">{log.error ?? (log.complete ? "It wrote nothing." : "Nothing has been written yet.")}</span>}
      </pre>
    </Card>
  );
}

/** Asks for what is new until the hub says that nothing more comes. */
function useLog(jobId: string, slice: number, ended: boolean): Read {
  const [read, setRead] = useState<Read>(NOTHING);
  useEffect(() => {
    let current = NOTHING;
    let stopped = false;
    let timer = 0;
    setRead(NOTHING);
    const look = async () => {
      let again = LOOK_SECONDS;
      try {
        const page = await readLog(jobId, slice, { offset: current.offset });
        const fresh = page.attempt_number !== current.attempt;
        // A new attempt's log begins at its own start, not where the old one stood.
        if (fresh && current.offset > 0) {
          current = { ...NOTHING, attempt: page.attempt_number };
          again = 0;
        } else {
          const text = cutLog(current.text + page.text);
          current = { text, offset: page.next_offset, attempt: page.attempt_number, complete: page.complete, error: null };
          if (page.text) again = 0.2;
        }
      } catch (error) {
        current = { ...current, error: error instanceof Error ? error.message : null };
        again = 3;
      }
      if (stopped) return;
      setRead(current);
      if (!(current.complete && ended)) timer = window.setTimeout(() => void look(), again * 1000);
    };
    void look();
    return () => {
      stopped = true;
      window.clearTimeout(timer);
    };
  }, [jobId, slice, ended]);
  return { ...read, text: plainLog(read.text) };
}
