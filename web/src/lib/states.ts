// Every state's word and tone, in one table. A tone is a colour of globals.css; the word is always shown beside it.

export type Tone = "ok" | "busy" | "wait" | "bad" | "idle";

const TONES: Record<string, Tone> = {
  // jobs, slices and attempts
  queued: "wait", leased: "busy", running: "busy", succeeded: "ok", failed: "bad", cancelled: "idle", lost: "bad",
  verifying: "wait",
  // nodes
  active: "ok", draining: "wait", paused: "idle", removed: "idle", offline: "bad", working: "busy",
  // trust
  clear: "ok", suspect: "wait", bugged: "bad", returning: "wait", barred: "bad",
  // top-ups and payouts
  requested: "wait", reserved: "wait", approved: "busy", sent: "busy", confirmed: "ok", returned: "bad",
  unknown: "wait", paid: "ok", refunded: "idle", charged_back: "bad", paid_back_twice: "bad",
  // pay
  pending: "wait", released: "ok", disputed: "wait", reversed: "bad", overpaid: "wait", underpaid: "bad", unpaid: "idle",
  open: "wait", upheld: "bad", dismissed: "ok",
  // runs
  placing: "wait", preparing: "wait", recovering: "wait", stopping: "idle", stopped: "idle",
};

export function toneOf(state: string): Tone {
  return TONES[state] ?? "idle";
}

/** Colours of tiers by family, slowest first. Cards without a family of their own count as the slowest. */
const TIER_COLOURS: [RegExp, string][] = [
  [/^rtx-50/, "--tier-5090"],
  [/^rtx-4090/, "--tier-4090"],
  [/^rtx-3090/, "--tier-3090"],
  [/^rtx-40/, "--tier-4070"],
  [/^rtx-308|^rtx-307/, "--tier-3080"],
  [/^rtx-30/, "--tier-3060"],
  [/^rtx-20/, "--tier-20"],
  [/^gtx/, "--tier-gtx"],
];

export function tierColour(tier: string): string {
  return TIER_COLOURS.find(([pattern]) => pattern.test(tier))?.[1] ?? "--tier-cpu";
}
