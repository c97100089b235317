"use client";
// The terms of a machine: floor price, hours, shortest slice, kinds, and whom it is lent to.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { setOffer, type Node } from "@/lib/api/gateway";
import { parseCredits, showCredits, toWire } from "@/lib/money";
import { Button, Choice, Field } from "@/ui/parts";
import { complain, say } from "@/ui/toasts";

const AUDIENCES = ["anyone", "own", "named"] as const;
const AUDIENCE_WORDS = { anyone: "Anyone", own: "Only me", named: "Named accounts" };

export default function OfferForm({ node }: { node: Node }) {
  const { offer } = node;
  const queries = useQueryClient();
  const [floor, setFloor] = useState(showCredits(offer.floor_microcredits_per_hour));
  const [hours, setHours] = useState(offer.hours ?? "");
  const [shortest, setShortest] = useState(String(offer.seconds_min));
  const [kinds, setKinds] = useState(offer.kinds.join(", "));
  const [audience, setAudience] = useState(offer.audience);
  const [accounts, setAccounts] = useState(offer.accounts.join(", "));
  const price = parseCredits(floor.replaceAll("\u202f", ""));
  const save = useMutation({
    mutationFn: () =>
      setOffer(node.id, {
        floor_microcredits_per_hour: toWire(price ?? 0n),
        hours: hours.trim() || null,
        zone: hours.trim() ? (offer.zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone) : null,
        seconds_min: Number(shortest) || 0,
        kinds: listOf(kinds),
        audience,
        accounts: audience === "named" ? listOf(accounts) : [],
      }),
    onSuccess: (changed) => {
      queries.setQueryData(["node", node.id], changed);
      say("The new terms hold from now on.");
    },
    onError: complain,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <form onSubmit={submit} className="grid gap-4 sm:grid-cols-2">
      <Field label="Floor, credits per hour" hint="The least that a slot is lent for" error={price === null ? "An amount such as 1.50" : null}>
        {(props) => <input {...props} inputMode="decimal" value={floor} onChange={(event) => setFloor(event.target.value)} />}
      </Field>
      <Field label="Shortest slice, seconds" hint="0: any length">
        {(props) => <input {...props} inputMode="numeric" value={shortest} onChange={(event) => setShortest(event.target.value.replace(/\D/g, ""))} />}
      </Field>
      <Field label="Hours" hint={`Such as mon-fri 22:00-07:00; empty: always. ${offer.zone ?? ""}`}>
        {(props) => <input {...props} value={hours} onChange={(event) => setHours(event.target.value)} placeholder="always" />}
      </Field>
      <Field label="Kinds of jobs" hint="Separated by commas; empty: all">
        {(props) => <input {...props} value={kinds} onChange={(event) => setKinds(event.target.value)} placeholder="all" />}
      </Field>
      <div className="sm:col-span-2">
        <p className="mb-1 text-sm font-medium">Lent to</p>
        <Choice label="Lent to" value={audience} options={AUDIENCES} onChange={setAudience} show={(each) => AUDIENCE_WORDS[each]} />
      </div>
      {audience === "named" ? (
        <div className="sm:col-span-2">
          <Field label="Accounts" hint="Their ids, separated by commas">{(props) => <input {...props} value={accounts} onChange={(event) => setAccounts(event.target.value)} />}</Field>
        </div>
      ) : null}
      <div className="sm:col-span-2">
        <Button type="submit" look="main" disabled={save.isPending || price === null}>
          Save the terms
        </Button>
      </div>
    </form>
  );
}

function listOf(text: string): string[] {
  return text.split(",").map((part) => part.trim()).filter(Boolean);
}
