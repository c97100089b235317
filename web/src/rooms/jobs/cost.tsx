"use client";
// Where the money of a job went: every figure from the ledger, and they add up.

import { useQuery } from "@tanstack/react-query";
import { getJobStatement, type Job } from "@/lib/api/gateway";
import { toPlot } from "@/lib/money";
import { Ask, Block } from "@/ui/faces";
import { Amount, Card, ShareBar } from "@/ui/parts";
import { usePoll } from "@/ui/providers";

export default function Cost({ job }: { job: Job }) {
  const poll = usePoll();
  const statement = useQuery({ queryKey: ["job-part", job.id, "statement"], queryFn: () => getJobStatement(job.id), refetchInterval: poll });
  return (
    <Card title="Cost">
      <Ask query={statement} loading={<Block className="h-40" />}>
        {(found) => {
          const parts = [
            { name: "to owners", value: found.earned_microcredits, colour: "var(--accent)" },
            { name: "fee", value: found.fee_microcredits, colour: "var(--busy)" },
            { name: "given back", value: found.refunded_microcredits, colour: "var(--idle)" },
            { name: "still set aside", value: found.remaining_microcredits, colour: "var(--wait)" },
          ];
          return (
            <div className="grid gap-4">
              <p className="text-2xl font-semibold">
                <Amount of={found.cost_microcredits} exact />
              </p>
              <ShareBar label="Where the money set aside went" parts={parts.map((part) => ({ ...part, value: toPlot(part.value) }))} />
              <dl className="grid grid-cols-[1fr_max-content] gap-x-6 gap-y-1.5">
                <dt className="text-soft">Set aside at submit</dt>
                <dd className="text-right">
                  <Amount of={found.held_microcredits} exact />
                </dd>
                {parts.map((part) => (
                  <div key={part.name} className="contents">
                    <dt className="flex items-center gap-2">
                      <span aria-hidden className="size-2.5 rounded-sm" style={{ background: part.colour }} />
                      {part.name}
                    </dt>
                    <dd className="text-right">
                      <Amount of={part.value} exact />
                    </dd>
                  </div>
                ))}
                {found.reversed_microcredits ? (
                  <>
                    <dt>taken back from owners</dt>
                    <dd className="text-right">
                      <Amount of={found.reversed_microcredits} exact />
                    </dd>
                  </>
                ) : null}
              </dl>
            </div>
          );
        }}
      </Ask>
    </Card>
  );
}
