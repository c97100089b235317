"use client";
// Lend this machine: one command, and the moment when it is here.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { createKey, listNodes, type Node } from "@/lib/api/gateway";
import { showBytes } from "@/lib/words";
import { Room } from "@/ui/faces";
import { Badge, Button, Card, CopyBox, LinkButton, Page, Tier } from "@/ui/parts";
import { useLiveStatus } from "@/ui/providers";
import { complain } from "@/ui/toasts";
import { listTiers } from "../nodes/node.model";

const LOOK_SECONDS = 2;
const KEY_SECONDS = 3600;

export function JoinPage() {
  return (
    <Page title="Lend this machine" lead="It runs jobs of others in a sandbox while you let it, on your terms, and earns credits. It only calls out: no port is opened.">
      <Room>
        <Join />
      </Room>
    </Page>
  );
}

function Join() {
  const [origin, setOrigin] = useState("");
  useEffect(() => setOrigin(window.location.origin), []);
  const make = useMutation({ mutationFn: () => createKey({ name: "enrolment from the web", roles: ["owner"], expires_seconds: KEY_SECONDS }), onError: complain });
  const secret = make.data?.secret;
  return (
    <div className="grid items-start gap-6 xl:grid-cols-2">
      <Card title="One command">
        <ol className="grid gap-5">
          <li>
            <p className="mb-2 font-medium">1. Make a key for the first start</p>
            {secret ? <p className="text-soft">It is in the command below, works for an hour, and is not shown again.</p> : <Button look="main" disabled={make.isPending} onClick={() => make.mutate()}>Make a key</Button>}
          </li>
          <li>
            <p className="mb-2 font-medium">2. Run this on the machine that you lend</p>
            <CopyBox label="command" text={`pip install computepool\ncomputepool node --hub-url ${origin || "https://your-hub"} --key ${secret ?? "YOUR_KEY"}`} />
            <p className="mt-2 text-sm text-soft">Linux with bubblewrap. Add --region IN for your country, --floor 5 for the least that an hour may bring. Ctrl-C lets running jobs finish and leaves.</p>
          </li>
        </ol>
      </Card>
      <Arrival waits={Boolean(secret)} />
    </div>
  );
}

/** Whatever node was not there when the page was opened has just come. */
function Arrival({ waits }: { waits: boolean }) {
  const live = useLiveStatus();
  const queries = useQueryClient();
  const nodes = useQuery({ queryKey: ["nodes", "arrivals"], queryFn: () => listNodes({ limit: 100 }), refetchInterval: LOOK_SECONDS * 1000 });
  const known = useRef<Set<string> | null>(null);
  const [arrived, setArrived] = useState<Node[]>([]);
  useEffect(() => {
    if (!nodes.data) return;
    if (known.current === null) known.current = new Set(nodes.data.nodes.map((node) => node.id));
    const before = known.current;
    const fresh = nodes.data.nodes.filter((node) => !before.has(node.id));
    if (fresh.length) setArrived(fresh);
  }, [nodes.data, queries]);
  return (
    <Card title="Your node">
      <div className="grid min-h-48 place-items-center text-center" aria-live="polite">
        {arrived.length ? (
          <div className="grid justify-items-center gap-3">
            <span aria-hidden className="grid size-14 place-items-center rounded-full bg-ok-wash text-2xl text-ok">
              ✓
            </span>
            {arrived.map((node) => (
              <div key={node.id} className="grid justify-items-center gap-1">
                <p className="text-xl font-semibold">{node.name} is here</p>
                <p className="flex flex-wrap justify-center gap-x-3 text-soft">
                  {listTiers(node).map((tier) => (
                    <Tier key={tier} tier={tier} />
                  ))}
                  <span>{node.hardware.cores} cores</span>
                  <span>{showBytes(node.hardware.ram_bytes)} RAM</span>
                </p>
                <LinkButton className="mt-2" href={`/node/?id=${node.id}`}>
                  Set its terms
                </LinkButton>
              </div>
            ))}
          </div>
        ) : (
          <div className="grid justify-items-center gap-3">
            <Badge tone={waits ? "busy" : "idle"}>{waits ? "listening" : "waiting"}</Badge>
            <p className="max-w-sm text-soft">{waits ? "The moment your machine calls in, it appears here." : "Make a key first; then your machine appears here the moment it calls in."}</p>
            {live === "away" ? <p className="text-sm text-bad">The hub cannot be reached at the moment.</p> : null}
          </div>
        )}
      </div>
    </Card>
  );
}
