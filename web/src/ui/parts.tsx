"use client";
// The small parts that all rooms are built of.

import Link from "next/link";
import { useId, useState, type ComponentProps, type ReactNode } from "react";
import { Check, Copy } from "lucide-react";
import { padDecimals, showCredits, showCreditsShort, type Microcredits } from "@/lib/money";
import { toneOf, tierColour, type Tone } from "@/lib/states";
import { showAbsolute, showEnum, showRelative, showTier } from "@/lib/words";
import { useNow } from "./providers";

const TONE_TEXT: Record<Tone, string> = {
  ok: "text-ok bg-ok-wash",
  busy: "text-busy bg-busy-wash",
  wait: "text-wait bg-wait-wash",
  bad: "text-bad bg-bad-wash",
  idle: "text-idle bg-idle-wash",
};

/** `slim`: for pages that are one small card. */
export function Page({ title, lead, actions, children, slim = false }: { title: ReactNode; lead?: ReactNode; actions?: ReactNode; children: ReactNode; slim?: boolean }) {
  return (
    <main id="main" className={`mx-auto w-full ${slim ? "max-w-lg sm:pt-16" : "max-w-[1600px]"} px-4 pt-6 pb-16 sm:px-6 lg:px-8`}>
      <div className="mb-6 flex min-h-10 flex-wrap items-start justify-between gap-x-6 gap-y-3">
        <div className="min-w-0">
          <h1 className="text-2xl font-semibold tracking-tight break-words">{title}</h1>
          {lead ? <p className="mt-1 max-w-3xl text-soft">{lead}</p> : null}
        </div>
        {actions ? <div className="flex flex-wrap items-center gap-2">{actions}</div> : null}
      </div>
      {children}
    </main>
  );
}

export function Card({ title, note, action, children, className = "", flush = false }: { title?: ReactNode; note?: ReactNode; action?: ReactNode; children: ReactNode; className?: string; flush?: boolean }) {
  const id = useId();
  return (
    <section aria-labelledby={title ? id : undefined} className={`min-w-0 rounded-xl border border-line bg-surface ${className}`}>
      {title ? (
        <header className="flex flex-wrap items-center justify-between gap-x-4 gap-y-1 px-4 pt-2 pb-1 sm:px-5">
          <h2 id={id} className="flex min-h-9 flex-wrap items-center gap-x-2 font-semibold">
            {title}
            {note ? <span className="text-sm font-normal text-soft">{note}</span> : null}
          </h2>
          {action}
        </header>
      ) : null}
      <div className={flush ? "" : `px-4 pb-4 sm:px-5 sm:pb-5 ${title ? "" : "pt-4 sm:pt-5"}`}>{children}</div>
    </section>
  );
}

/** One figure with its name; the unit is never left out. */
export function Stat({ name, value, unit, note, big = false }: { name: ReactNode; value: ReactNode; unit?: ReactNode; note?: ReactNode; big?: boolean }) {
  return (
    <div className="min-w-0">
      <dt className="text-sm text-soft">{name}</dt>
      {/* Never cut: a figure without its end is another figure. */}
      <dd className={`figure font-semibold tracking-tight break-words ${big ? "text-xl sm:text-3xl" : "text-xl"}`}>
        {value}
        {unit ? <span className="ml-1 text-sm font-normal text-soft">{unit}</span> : null}
      </dd>
      {note ? <dd className="text-sm text-soft">{note}</dd> : null}
    </div>
  );
}

export function Badge({ state, tone, children }: { state?: string; tone?: Tone; children?: ReactNode }) {
  const chosen = tone ?? toneOf(state ?? "");
  return (
    <span className={`inline-flex items-center gap-1.5 rounded-full px-2 align-middle py-0.5 text-sm font-medium whitespace-nowrap ${TONE_TEXT[chosen]}`}>
      <span aria-hidden className={`size-1.5 rounded-full bg-current ${chosen === "busy" ? "alive" : ""}`} />
      {children ?? showEnum(state ?? "")}
    </span>
  );
}

export function Tier({ tier }: { tier: string }) {
  return (
    <span className="inline-flex items-center gap-1.5 whitespace-nowrap">
      <span aria-hidden className="size-2 rounded-full" style={{ background: `var(${tierColour(tier)})` }} />
      {showTier(tier)}
    </span>
  );
}

export function Time({ at }: { at: Date | null | undefined }) {
  const now = useNow();
  if (!at) return <span className="text-soft">–</span>;
  return (
    <time dateTime={at.toISOString()} title={showAbsolute(at)} className="figure whitespace-nowrap">
      {now ? showRelative(at, now) : "…"}
    </time>
  );
}

/** In tiles the short form; every digit stands in the title. `column`: points stand below each other. */
export function Amount({ of, exact = false, unit = true, signed = false, column = false }: { of: Microcredits; exact?: boolean; unit?: boolean; signed?: boolean; column?: boolean }) {
  const text = exact ? showCredits(of) : showCreditsShort(of);
  return (
    <span className="figure whitespace-nowrap" title={`${showCredits(of)} credits`}>
      {signed && of > 0n ? "+" : ""}
      {text}
      {column ? <span aria-hidden className="invisible max-md:hidden">{padDecimals(text)}</span> : null}
      {unit ? <span className="text-soft"> cr</span> : null}
    </span>
  );
}

export function Price({ of }: { of: Microcredits }) {
  return (
    <span className="figure whitespace-nowrap" title={`${showCredits(of)} credits per hour`}>
      {showCreditsShort(of)}
      <span className="text-soft"> cr/h</span>
    </span>
  );
}

type ButtonLook = "main" | "plain" | "danger" | "quiet";

const BUTTON: Record<ButtonLook, string> = {
  main: "bg-accent text-accent-ink border-transparent hover:opacity-90",
  plain: "bg-surface text-ink border-line hover:bg-raised",
  danger: "bg-surface text-bad border-line hover:bg-bad-wash",
  quiet: "bg-transparent text-soft border-transparent hover:bg-raised hover:text-ink",
};
const BUTTON_SHAPE =
  "inline-flex min-h-9 items-center justify-center gap-2 rounded-lg border px-3 py-1.5 text-sm font-medium whitespace-nowrap transition-colors disabled:cursor-not-allowed disabled:opacity-55";

export function Button({ look = "plain", className = "", type = "button", ...rest }: ComponentProps<"button"> & { look?: ButtonLook }) {
  return <button type={type} className={`${BUTTON_SHAPE} ${BUTTON[look]} ${className}`} {...rest} />;
}

export function LinkButton({ look = "plain", className = "", ...rest }: ComponentProps<typeof Link> & { look?: ButtonLook }) {
  return <Link className={`${BUTTON_SHAPE} ${BUTTON[look]} ${className}`} {...rest} />;
}

const INPUT = "w-full min-h-9 rounded-lg border border-line-strong bg-surface px-3 py-1.5 placeholder:text-soft";

export function Field({ label, hint, error, children }: { label: string; hint?: ReactNode; error?: string | null; children: (props: { id: string; className: string; "aria-describedby"?: string; "aria-invalid"?: boolean }) => ReactNode }) {
  const id = useId();
  const told = error || hint;
  return (
    <div className="min-w-0">
      <label htmlFor={id} className="mb-1 block text-sm font-medium">
        {label}
      </label>
      {children({ id, className: INPUT, "aria-describedby": told ? `${id}-told` : undefined, "aria-invalid": error ? true : undefined })}
      {told ? (
        <p id={`${id}-told`} className={`mt-1 text-sm ${error ? "text-bad" : "text-soft"}`}>
          {told}
        </p>
      ) : null}
    </div>
  );
}

/** A row of choices of which one holds. */
export function Choice<T extends string>({ label, value, options, onChange, show = showEnum }: { label: string; value: T; options: readonly T[]; onChange: (value: T) => void; show?: (value: T) => string }) {
  return (
    <div role="group" aria-label={label} className="inline-flex w-fit flex-wrap gap-1 rounded-lg border border-line bg-raised p-0.5">
      {options.map((option) => (
        <button
          key={option}
          type="button"
          aria-pressed={option === value}
          onClick={() => onChange(option)}
          className={`min-h-7 rounded-md px-2.5 text-sm ${option === value ? "bg-surface font-medium text-ink shadow-sm" : "text-soft hover:text-ink"}`}
        >
          {show(option)}
        </button>
      ))}
    </div>
  );
}

/** Text that people take along. */
export function CopyBox({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      window.setTimeout(() => setCopied(false), 1500);
    } catch {
      // Without the permission, the text can still be marked by hand.
    }
  };
  return (
    <div className="relative rounded-lg border border-line bg-raised">
      <pre tabIndex={0} aria-label={label} className="overflow-x-auto p-3 pr-12 font-mono text-[13px] leading-relaxed whitespace-pre-wrap break-words">
        {text}
      </pre>
      <button
        type="button"
        onClick={() => void copy()}
        aria-label={copied ? "Copied" : `Copy ${label}`}
        className="absolute top-1.5 right-1.5 grid size-8 place-items-center rounded-md text-soft hover:bg-surface hover:text-ink"
      >
        {copied ? <Check size={16} aria-hidden /> : <Copy size={16} aria-hidden />}
      </button>
    </div>
  );
}

/** A bar of shares, with the same said in words to those who do not see it. */
export function ShareBar({ parts, label, height = "h-2" }: { parts: { name: string; value: number; colour: string }[]; label: string; height?: string }) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const words = parts.filter((part) => part.value > 0).map((part) => `${part.value} ${part.name}`);
  return (
    <div role="img" aria-label={`${label}: ${words.join(", ") || "nothing"}`} className={`flex w-full overflow-hidden rounded-full bg-raised ${height}`}>
      {total > 0
        ? parts.map((part) =>
            part.value > 0 ? <span key={part.name} style={{ width: `${(part.value / total) * 100}%`, background: part.colour }} /> : null,
          )
        : null}
    </div>
  );
}
