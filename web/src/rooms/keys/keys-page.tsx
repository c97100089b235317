"use client";
// The account: how others see it, its password, and the keys that act in its name.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { changeProfile, createKey, listKeys, revokeKey, setPassword, type Account, type Key, type Profile, type Role } from "@/lib/api/gateway";
import { showBytes, showCount } from "@/lib/words";
import { Confirm } from "@/ui/confirm";
import { Ask, Block, Empty, Room } from "@/ui/faces";
import { Badge, Button, Card, CopyBox, Field, Page, Stat, Time } from "@/ui/parts";
import { useAccount, useProfile } from "@/ui/providers";
import { Table, type Column } from "@/ui/table";
import { complain, say } from "@/ui/toasts";

const LASTS: [string, number | null][] = [
  ["30 days", 30 * 86_400],
  ["90 days", 90 * 86_400],
  ["a year", 365 * 86_400],
  ["until it is revoked", null],
];

export function KeysPage() {
  return (
    <Page title="Account and keys">
      <Room>
        <Rooms />
      </Room>
    </Page>
  );
}

function Rooms() {
  const account = useAccount();
  const profile = useProfile();
  if (!account) return null;
  return (
    <div className="grid gap-6">
      <div className="grid items-start gap-6 xl:grid-cols-2">
        {profile ? <Public profile={profile} /> : <Block className="h-64" />}
        <div className="grid gap-6">
          <Password />
          <Card title="Limits">
            <dl className="grid grid-cols-3 gap-4">
              <Stat name="Calls a minute" value={showCount(account.limits.calls_per_minute_max)} />
              <Stat name="Slices queued" value={showCount(account.limits.queued_slices_max)} />
              <Stat name="Files" value={showBytes(account.stored_bytes)} unit={`of ${showBytes(account.limits.stored_bytes_max)}`} />
            </dl>
          </Card>
        </div>
      </div>
      <Keys account={account} />
    </div>
  );
}

function Keys({ account }: { account: Account }) {
  const queries = useQueryClient();
  const keys = useQuery({ queryKey: ["keys"], queryFn: listKeys });
  const refresh = () => void queries.invalidateQueries({ queryKey: ["keys"] });
  const revoke = useMutation({ mutationFn: revokeKey, onSuccess: () => { refresh(); say("Revoked: every hub refuses it within seconds."); }, onError: complain });
  const columns: Column<Key>[] = [
    { name: "Name", cell: (key) => <span className="inline-block max-w-64 truncate align-bottom font-medium">{key.name || "unnamed"}</span> },
    { name: "Roles", cell: (key) => key.roles.join(", ") },
    { name: "State", cell: (key) => <Badge tone={isDead(key) ? "idle" : "ok"}>{key.revoked_at ? "revoked" : isDead(key) ? "expired" : "good"}</Badge> },
    { name: "Last used", right: true, wide: true, cell: (key) => <Time at={key.last_used_at} /> },
    { name: "Expires", right: true, wide: true, cell: (key) => (key.expires_at ? <Time at={key.expires_at} /> : "never") },
    {
      name: "",
      right: true,
      cell: (key) =>
        isDead(key) ? null : (
          <Confirm trigger="Revoke" title={`Revoke ${key.name || "this key"}?`} action="Revoke it" onConfirm={() => revoke.mutate(key.id)}>
            Whatever uses it is refused from then on. If it is the one that this browser signed in with, you are signed out.
          </Confirm>
        ),
    },
  ];
  return (
    <Card title="API keys" flush>
      <div className="px-4 pb-4 sm:px-5">
        <NewKey account={account} onMade={refresh} />
      </div>
      <Ask query={keys} isEmpty={(page) => !page.keys.length} empty={<Empty title="No keys" />}>
        {(page) => <Table label="API keys" rows={page.keys} keyOf={(key) => key.id} columns={columns} />}
      </Ask>
    </Card>
  );
}

function isDead(key: Key): boolean {
  return Boolean(key.revoked_at) || (key.expires_at instanceof Date && key.expires_at.getTime() < Date.now());
}

function NewKey({ account, onMade }: { account: Account; onMade: () => void }) {
  const [name, setName] = useState("");
  const [roles, setRoles] = useState<Role[]>(account.roles.filter((role) => role === "submitter"));
  const [lasts, setLasts] = useState(0);
  const make = useMutation({
    mutationFn: () => createKey({ name, roles, expires_seconds: LASTS[lasts]?.[1] ?? null }),
    onSuccess: () => {
      onMade();
      setName("");
    },
    onError: complain,
  });
  return (
    <div className="grid gap-4">
      <form className="grid items-end gap-4 md:grid-cols-[1fr_auto_12rem_auto]" onSubmit={(event: FormEvent) => { event.preventDefault(); make.mutate(); }}>
        <Field label="Name of a new key">{(props) => <input {...props} required maxLength={100} value={name} onChange={(event) => setName(event.target.value)} placeholder="what it is for" />}</Field>
        <fieldset className="flex min-h-9 flex-wrap items-center gap-x-4">
          <legend className="mb-1 text-sm font-medium">Roles</legend>
          {account.roles.map((role) => (
            <label key={role} className="flex items-center gap-2">
              <input type="checkbox" className="size-4 accent-[var(--accent)]" checked={roles.includes(role)} onChange={(event) => setRoles(event.target.checked ? [...roles, role] : roles.filter((each) => each !== role))} />
              {role}
            </label>
          ))}
        </fieldset>
        <Field label="Lasts">
          {(props) => (
            <select {...props} value={lasts} onChange={(event) => setLasts(Number(event.target.value))}>
              {LASTS.map(([words], index) => (
                <option key={words} value={index}>
                  {words}
                </option>
              ))}
            </select>
          )}
        </Field>
        <Button type="submit" look="main" disabled={make.isPending || !name || !roles.length}>Make a key</Button>
      </form>
      {make.data ? (
        <div role="status" className="grid gap-2">
          <p className="text-sm">Copy it now: it is not shown again.</p>
          <CopyBox label="new key" text={make.data.secret} />
        </div>
      ) : null}
    </div>
  );
}

function Public({ profile }: { profile: Profile }) {
  const queries = useQueryClient();
  const [pseudonym, setPseudonym] = useState(profile.pseudonym);
  const change = useMutation({
    mutationFn: changeProfile,
    onSuccess: (changed) => {
      queries.setQueryData(["profile"], changed);
      setPseudonym(changed.pseudonym);
      say("Saved.");
    },
    onError: complain,
  });
  return (
    <Card title="How others see you">
      <form className="grid gap-4" onSubmit={(event: FormEvent) => { event.preventDefault(); change.mutate({ pseudonym }); }}>
        <Field label="Pseudonym" hint="Stands on the leaderboard instead of your name">{(props) => <input {...props} value={pseudonym} maxLength={40} onChange={(event) => setPseudonym(event.target.value)} />}</Field>
        <div><Button type="submit" disabled={change.isPending || pseudonym === profile.pseudonym}>Save the pseudonym</Button></div>
        <label className="flex items-center gap-2">
          <input type="checkbox" className="size-4 accent-[var(--accent)]" checked={profile.on_leaderboard} onChange={(event) => change.mutate({ on_leaderboard: event.target.checked })} />
          Show me on the leaderboard
        </label>
        <label className="flex items-center gap-2">
          <input type="checkbox" className="size-4 accent-[var(--accent)]" checked={profile.shows_titles} onChange={(event) => change.mutate({ shows_titles: event.target.checked })} />
          Show titles of my jobs on the front page
        </label>
      </form>
    </Card>
  );
}

function Password() {
  const [password, setText] = useState("");
  const save = useMutation({ mutationFn: () => setPassword(password), onSuccess: () => { setText(""); say("The password holds from now on."); }, onError: complain });
  return (
    <Card title="Password">
      <form className="grid gap-3" onSubmit={(event: FormEvent) => { event.preventDefault(); save.mutate(); }}>
        <Field label="New password" hint="At least 10 characters">{(props) => <input {...props} type="password" autoComplete="new-password" minLength={10} required value={password} onChange={(event) => setText(event.target.value)} />}</Field>
        <div><Button type="submit" disabled={save.isPending || password.length < 10}>Set the password</Button></div>
      </form>
    </Card>
  );
}
