"use client";
// People, found by name, and stopped if need be.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { resumeAccount, searchAccounts, suspendAccount, type Account } from "@/lib/api/gateway";
import { Confirm } from "@/ui/confirm";
import { Ask, Empty } from "@/ui/faces";
import { Badge, Button, Card, Field, Time } from "@/ui/parts";
import { Table, type Column } from "@/ui/table";
import { complain, say } from "@/ui/toasts";
import { useLater } from "@/ui/use-later";

export default function Accounts() {
  const [text, setText] = useState("");
  const sought = useLater(text.trim());
  const queries = useQueryClient();
  const accounts = useQuery({ queryKey: ["operator", "accounts", sought], queryFn: () => searchAccounts({ q: sought || undefined, limit: 50 }) });
  const act = useMutation({
    mutationFn: (call: () => Promise<Account>) => call(),
    onSuccess: (account) => {
      void queries.invalidateQueries({ queryKey: ["operator"] });
      say(account.suspended_at ? `${account.name} is suspended.` : `${account.name} may go on.`);
    },
    onError: complain,
  });
  const columns: Column<Account>[] = [
    { name: "Name", cell: (account) => <span className="inline-block max-w-56 truncate align-bottom font-medium">{account.name}</span> },
    { name: "Email", cell: (account) => <span className="inline-block max-w-64 truncate align-bottom">{account.email}</span> },
    { name: "Roles", wide: true, cell: (account) => account.roles.join(", ") },
    { name: "State", cell: (account) => <Badge tone={account.suspended_at ? "bad" : "ok"}>{account.suspended_at ? "suspended" : "good"}</Badge> },
    { name: "Since", right: true, wide: true, cell: (account) => <Time at={account.created_at} /> },
    {
      name: "",
      right: true,
      cell: (account) =>
        account.suspended_at ? (
          <Button disabled={act.isPending} onClick={() => act.mutate(() => resumeAccount(account.id))}>Resume</Button>
        ) : (
          <Confirm trigger="Suspend" title={`Suspend ${account.name}?`} action="Suspend" onConfirm={() => act.mutate(() => suspendAccount(account.id))}>
            Its keys are refused within seconds, and its jobs and nodes stop.
          </Confirm>
        ),
    },
  ];
  return (
    <Card title="Accounts" flush>
      <div className="max-w-sm px-4 pb-4 sm:px-5">
        <Field label="Find an account">{(props) => <input {...props} type="search" value={text} onChange={(event) => setText(event.target.value)} placeholder="email, name or pseudonym contains" />}</Field>
      </div>
      <Ask query={accounts} isEmpty={(page) => !page.accounts.length} empty={<Empty title="Nobody is like that" />}>
        {(page) => <Table label="Accounts" rows={page.accounts} keyOf={(account) => account.id} columns={columns} />}
      </Ask>
    </Card>
  );
}
