"use client";
// The way in: a one-time link, a password, or a new account. A link is used by this script and not by loading the page,
// so that a preview in a chat does not use it up.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useSearchParams } from "next/navigation";
import { useEffect, useRef, useState, type FormEvent } from "react";
import { signIn, signUp } from "@/lib/api/gateway";
import { Button, Card, Choice, Field, LinkButton, Page } from "@/ui/parts";
import { useHub } from "@/ui/providers";

export function SignInPage() {
  const token = useSearchParams().get("token");
  return token ? <ByLink token={token} /> : <ByHand />;
}

function ByLink({ token }: { token: string }) {
  const enter = useMutation({ mutationFn: () => signIn({ link_token: token }), onSuccess: () => window.location.replace("/") });
  const asked = useRef(false);
  const { mutate } = enter;
  useEffect(() => {
    // A link works once: never ask twice, however often this component is made.
    if (asked.current) return;
    asked.current = true;
    mutate();
  }, [mutate]);
  return (
    <Page slim title="Sign in">
      <Card>
        {enter.error ? (
          <div role="alert" className="grid gap-3">
            <p>{enter.error.message}</p>
            <LinkButton href="/sign-in/">Sign in another way</LinkButton>
          </div>
        ) : (
          <p role="status">Signing you in …</p>
        )}
      </Card>
    </Page>
  );
}

const WAYS = ["in", "up"] as const;

function ByHand() {
  const hub = useHub();
  const params = useSearchParams();
  const open = hub.data?.sign_up !== "closed";
  const [way, setWay] = useState<(typeof WAYS)[number]>(params.get("new") ? "up" : "in");
  return (
    <Page slim title={way === "in" || !open ? "Sign in" : "Create an account"} lead="With one account you hand in jobs, lend machines and hold credits.">
      <Card>
        <div className="grid gap-5">
          {open ? <Choice label="Way in" value={way} options={WAYS} onChange={setWay} show={(each) => (each === "in" ? "I have an account" : "I am new")} /> : null}
          {way === "in" || !open ? <SignInForm /> : <SignUpForm byInvite={hub.data?.sign_up === "invite"} />}
        </div>
      </Card>
    </Page>
  );
}

function useWayIn(call: () => Promise<unknown>) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: call,
    onSuccess: () => {
      queries.clear();
      window.location.replace("/");
    },
  });
}

function SignInForm() {
  const [email, setEmail] = useState("");
  const [password, setPassword] = useState("");
  const enter = useWayIn(() => signIn({ email, password }));
  return (
    <>
      <form className="grid gap-4" onSubmit={(event: FormEvent) => { event.preventDefault(); enter.mutate(); }}>
        <Field label="Email">{(props) => <input {...props} type="email" required autoComplete="username" value={email} onChange={(event) => setEmail(event.target.value)} />}</Field>
        <Field label="Password" error={enter.error?.message}>{(props) => <input {...props} type="password" required autoComplete="current-password" value={password} onChange={(event) => setPassword(event.target.value)} />}</Field>
        <Button type="submit" look="main" disabled={enter.isPending}>Sign in</Button>
      </form>
      <p className="border-t border-line pt-4 text-sm text-soft">
        No password yet? Open a one-time sign-in link: a new hub prints one when it starts, and its operator can make one for you.
      </p>
    </>
  );
}

function SignUpForm({ byInvite }: { byInvite: boolean }) {
  const [name, setName] = useState("");
  const [email, setEmail] = useState("");
  const [password, setPassword] = useState("");
  const [invite, setInvite] = useState("");
  // The new account's first key goes to programs; a browser gets its cookie by signing in.
  const enter = useWayIn(async () => {
    await signUp({ name, email, password, invite: invite.trim() || null });
    return signIn({ email, password });
  });
  return (
    <form className="grid gap-4" onSubmit={(event: FormEvent) => { event.preventDefault(); enter.mutate(); }}>
      <Field label="Name">{(props) => <input {...props} required autoComplete="name" value={name} onChange={(event) => setName(event.target.value)} />}</Field>
      <Field label="Email">{(props) => <input {...props} type="email" required autoComplete="username" value={email} onChange={(event) => setEmail(event.target.value)} />}</Field>
      <Field label="Password" hint="At least 10 characters" error={enter.error?.message}>{(props) => <input {...props} type="password" required minLength={10} autoComplete="new-password" value={password} onChange={(event) => setPassword(event.target.value)} />}</Field>
      {byInvite ? <Field label="Invite" hint="This hub takes new people by invite">{(props) => <input {...props} required value={invite} onChange={(event) => setInvite(event.target.value)} />}</Field> : null}
      <Button type="submit" look="main" disabled={enter.isPending}>Create the account</Button>
    </form>
  );
}
