// Every question the site asks the hub, once. Pages know these functions and the types below, never a URL.

import { client, read, readBytes } from "./client";
import type { components } from "./schema";
import type { FromWire } from "./wire";

type Wire = components["schemas"];
export type Account = FromWire<Wire["Account"]>;
export type AccountDispute = FromWire<Wire["AccountDispute"]>;
type PlacedAttempt = FromWire<Wire["PlacedAttempt"]>;
export type Attempt = PlacedAttempt["attempt"] & Omit<PlacedAttempt, "attempt">;
export type Counts = FromWire<Wire["Counts"]>;
export type Credits = FromWire<Wire["Credits"]>;
export type Depth = FromWire<Wire["Depth"]>;
export type DistrustedNode = FromWire<Wire["DistrustedNode"]>;
export type Hold = FromWire<Wire["Hold"]>;
export type HubView = FromWire<Wire["HubView"]>;
export type Job = FromWire<Wire["Job"]>;
/** Whatever is left out of a question has its default at the hub. */
type Asked<T> = T extends (infer Item)[] ? Asked<Item>[] : T extends object ? { [K in keyof T]?: Asked<T[K]> } : T;
export type JobSpec = Asked<Wire["JobSpec"]>;
export type JobState = Wire["JobState"];
export type JobWhy = FromWire<Wire["JobWhy"]>;
export type Key = FromWire<Wire["Key"]>;
export type Leaderboard = FromWire<Wire["Leaderboard"]>;
export type Mesh = FromWire<Wire["Mesh"]>;
export type MeshArc = FromWire<Wire["MeshArc"]>;
export type MeshEdge = FromWire<Wire["MeshEdge"]>;
export type MeshNode = FromWire<Wire["MeshNode"]>;
export type Network = FromWire<Wire["Network"]>;
export type NetworkDetail = FromWire<Wire["NetworkDetail"]>;
export type Node = FromWire<Wire["Node"]>;
export type NodeState = Wire["NodeState"];
export type OutputFile = FromWire<Wire["OutputFile"]>;
export type Profile = FromWire<Wire["Profile"]>;
export type Payout = FromWire<Wire["Payout"]>;
export type PublicJob = FromWire<Wire["PublicJob"]>;
export type Quote = FromWire<Wire["Quote"]>;
export type QuoteRequest = Asked<Wire["QuoteRequest"]>;
export type RateCard = FromWire<Wire["RateCard"]>;
export type Role = Wire["Role"];
export type Run = FromWire<Wire["Run"]>;
export type RunDetail = FromWire<Wire["RunDetail"]>;
export type RunLine = FromWire<Wire["RunLine"]>;
export type SetOffer = Asked<Wire["SetOffer"]>;
export type Slice = FromWire<Wire["Slice"]>;
export type SliceState = Wire["SliceState"];
export type Spot = FromWire<Wire["Spot"]>;
export type TopUp = FromWire<Wire["TopUp"]>;
export type TransferLine = FromWire<Wire["TransferLine"]>;
export type LeaderboardBy = Wire["Leaderboard"]["by"];
export type LeaderboardPeriod = Wire["Leaderboard"]["period"];

/** An attempt and its place in one row. */
function flatten(page: FromWire<Wire["AttemptPage"]>): { attempts: Attempt[]; cursor: string | null } {
  return { attempts: page.attempts.map(({ attempt, ...place }) => ({ ...place, ...attempt })), cursor: page.cursor };
}

/** Said twice with one key, it happens once. */
const once = (key: string) => ({ "Idempotency-Key": key });

/** Works on plain http, too, where browsers withhold crypto.randomUUID. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

type Page = { cursor?: string; limit?: number };

// The hub and the grid, for everyone.
export const getHub = () => read(client.GET("/v1/hub"));
export const getMesh = () => read(client.GET("/v1/public/mesh"));
export const listPublicJobs = (limit: number) => read(client.GET("/v1/public/jobs", { params: { query: { limit } } }));
export const getLeaderboard = (query: { by: LeaderboardBy; period: LeaderboardPeriod; limit: number }) =>
  read(client.GET("/v1/leaderboard", { params: { query } }));
export const unplug = (name: string, seconds: number) =>
  read(client.POST("/v1/demo/nodes/{name}/unplug", { params: { path: { name } }, body: { seconds } }));

// Who is here.
export const getAccount = () => read(client.GET("/v1/accounts/me"));
export const getProfile = () => read(client.GET("/v1/accounts/me/profile"));
export const changeProfile = (body: Asked<Wire["ChangeProfile"]>) =>
  read(client.PATCH("/v1/accounts/me/profile", { body: body as Wire["ChangeProfile"] }));
export const setPassword = (password: string) => read(client.PUT("/v1/accounts/me/password", { body: { password } }));
export const signIn = (body: Asked<Wire["SignInRequest"]>) => read(client.POST("/v1/sign-in", { body: body as Wire["SignInRequest"] }));
export const signUp = (body: Asked<Wire["SignUpRequest"]>) => read(client.POST("/v1/accounts", { body: body as Wire["SignUpRequest"] }));
export const signOut = () => read(client.POST("/v1/sign-out"));
export const listKeys = () => read(client.GET("/v1/keys"));
export const createKey = (body: Asked<Wire["CreateKey"]>) => read(client.POST("/v1/keys", { body: body as Wire["CreateKey"] }));
export const revokeKey = (key_id: string) => read(client.DELETE("/v1/keys/{key_id}", { params: { path: { key_id } } }));

// Jobs.
export const listJobs = (query: Page & { state?: JobState; name?: string }) =>
  read(client.GET("/v1/jobs", { params: { query } }));
export const getJob = (job_id: string) => read(client.GET("/v1/jobs/{job_id}", { params: { path: { job_id } } }));
export const submitJob = (body: JobSpec, key: string) =>
  read(client.POST("/v1/jobs", { body: body as Wire["JobSpec"], headers: once(key) }));
export const cancelJob = (job_id: string) =>
  read(client.POST("/v1/jobs/{job_id}/cancel", { params: { path: { job_id } } }));
export const getSpec = (job_id: string) => read(client.GET("/v1/jobs/{job_id}/spec", { params: { path: { job_id } } }));
export const getStrip = (job_id: string) =>
  read(client.GET("/v1/jobs/{job_id}/strip", { params: { path: { job_id } } }));
export const listJobAttempts = (job_id: string, query: Page & { slice?: number }) =>
  read(client.GET("/v1/jobs/{job_id}/attempts", { params: { path: { job_id }, query } })).then(flatten);
export const listSlices = (job_id: string, query: { after?: number; limit?: number; state?: SliceState }) =>
  read(client.GET("/v1/jobs/{job_id}/slices", { params: { path: { job_id }, query } }));
export const getSlice = (job_id: string, index: number) =>
  read(client.GET("/v1/jobs/{job_id}/slices/{index}", { params: { path: { job_id, index } } }));
export const readLog = (job_id: string, index: number, query: { offset: number; attempt?: number }) =>
  read(client.GET("/v1/jobs/{job_id}/slices/{index}/logs", { params: { path: { job_id, index }, query } }));
export const listJobEvents = (job_id: string, after: number) =>
  read(client.GET("/v1/jobs/{job_id}/events", { params: { path: { job_id }, query: { after, limit: 200 } } }));
export const getJobStatement = (job_id: string) =>
  read(client.GET("/v1/jobs/{job_id}/statement", { params: { path: { job_id }, query: { limit: 100 } } }));
export const getJobWhy = (job_id: string, slice?: number) =>
  read(client.GET("/v1/jobs/{job_id}/why", { params: { path: { job_id }, query: { slice } } }));
export const getQuote = (body: QuoteRequest) => read(client.POST("/v1/quotes", { body: body as Wire["QuoteRequest"] }));
export const pathOfFile = (sha256: string) => `/v1/artifacts/${encodeURIComponent(sha256)}`;
export const readFile = (sha256: string, bytesMax: number) => readBytes(pathOfFile(sha256), bytesMax);

// Nodes.
export const listNodes = (query: Page & { state?: NodeState; online?: boolean; name?: string }) =>
  read(client.GET("/v1/nodes", { params: { query } }));
export const getNode = (node_id: string) => read(client.GET("/v1/nodes/{node_id}", { params: { path: { node_id } } }));
export const getNodeTrust = (node_id: string) =>
  read(client.GET("/v1/nodes/{node_id}/trust", { params: { path: { node_id } } }));
export const getNodeWhy = (node_id: string) =>
  read(client.GET("/v1/nodes/{node_id}/why", { params: { path: { node_id } } }));
export const listNodeAttempts = (node_id: string, query: Page) =>
  read(client.GET("/v1/nodes/{node_id}/attempts", { params: { path: { node_id }, query } })).then(flatten);
export const getNodeEarnings = (node_id: string, days: number) =>
  read(client.GET("/v1/nodes/{node_id}/earnings", { params: { path: { node_id }, query: { days } } }));
export const setOffer = (node_id: string, body: SetOffer) =>
  read(client.PUT("/v1/nodes/{node_id}/offer", { params: { path: { node_id } }, body: body as Wire["SetOffer"] }));
export const drainNode = (node_id: string) =>
  read(client.POST("/v1/nodes/{node_id}/drain", { params: { path: { node_id } } }));
export const pauseNode = (node_id: string) =>
  read(client.POST("/v1/nodes/{node_id}/pause", { params: { path: { node_id } } }));
export const resumeNode = (node_id: string) =>
  read(client.POST("/v1/nodes/{node_id}/resume", { params: { path: { node_id } } }));
export const removeNode = (node_id: string) =>
  read(client.POST("/v1/nodes/{node_id}/remove", { params: { path: { node_id } } }));

// Market.
export const getSpots = () => read(client.GET("/v1/market/spot"));
export const getSpotHistory = (tier: string, region: string, hours: number) =>
  read(client.GET("/v1/market/history", { params: { query: { tier, region, hours } } }));
export const getRateCard = () => read(client.GET("/v1/market/rate-card"));
export const getEarnings = (query: { tier?: string; country?: string }) =>
  read(client.GET("/v1/market/earnings", { params: { query } }));
export const getDepth = (tier: string, region: string) =>
  read(client.GET("/v1/market/depth", { params: { query: { tier, region } } }));

// Wallet.
export const getCredits = () => read(client.GET("/v1/credits"));
export const listHolds = (query: Page) => read(client.GET("/v1/credits/holds", { params: { query } }));
export const getStatement = (query: Page & { from?: string }) =>
  read(client.GET("/v1/credits/statement", { params: { query: { ...query, format: "json" } } }));
export const pathOfStatement = "/v1/credits/statement?format=csv";
export const listTopUps = (query: Page) => read(client.GET("/v1/credits/top-ups", { params: { query } }));
export const requestTopUp = (amount_microcredits: number, key: string) =>
  read(client.POST("/v1/credits/top-ups", { body: { amount_microcredits, currency: null }, headers: once(key) }));
export const getPayoutDetails = () => read(client.GET("/v1/credits/payout-details"));
export const setPayoutDetails = (body: Asked<Wire["SetPayoutDetails"]>) =>
  read(client.PUT("/v1/credits/payout-details", { body: body as Wire["SetPayoutDetails"] }));
export const listPayouts = (query: Page) => read(client.GET("/v1/credits/payouts", { params: { query } }));
export const requestPayout = (amount_microcredits: number, key: string) =>
  read(client.POST("/v1/credits/payouts", { body: { amount_microcredits, currency: null }, headers: once(key) }));
export const cancelPayout = (payout_id: string) =>
  read(client.POST("/v1/credits/payouts/{payout_id}/cancel", { params: { path: { payout_id } } }));
export const spendEarnings = (amount_microcredits: number, key: string) =>
  read(client.POST("/v1/credits/spend-earnings", { body: { amount_microcredits }, headers: once(key) }));
export const getPayWhy = (node: string, day: string) =>
  read(client.GET("/v1/credits/why", { params: { query: { node, day, limit: 50 } } }));
export const getProof = () => read(client.GET("/v1/credits/proof"));

// Networks.
export const listNetworks = (query: Page) => read(client.GET("/v1/networks", { params: { query } }));
export const getNetwork = (network_id: string) =>
  read(client.GET("/v1/networks/{network_id}", { params: { path: { network_id } } }));
export const listRuns = (query: Page & { network?: string }) => read(client.GET("/v1/runs", { params: { query } }));
export const getRun = (run_id: string) => read(client.GET("/v1/runs/{run_id}", { params: { path: { run_id } } }));
export const getRunFeed = (run_id: string, after: number) =>
  read(client.GET("/v1/runs/{run_id}/feed", { params: { path: { run_id }, query: { after } } }));
export const listCheckpoints = (run_id: string) =>
  read(client.GET("/v1/runs/{run_id}/checkpoints", { params: { path: { run_id } } }));
export const stopRun = (run_id: string) =>
  read(client.POST("/v1/runs/{run_id}/stop", { params: { path: { run_id } } }));

// Operator.
export const getOverview = () => read(client.GET("/v1/operator/overview"));
export const getHistory = (hours: number) =>
  read(client.GET("/v1/operator/history", { params: { query: { hours } } }));
export const searchAccounts = (query: { q?: string; after?: string; limit?: number }) =>
  read(client.GET("/v1/accounts", { params: { query } }));
export const suspendAccount = (account_id: string) =>
  read(client.POST("/v1/accounts/{account_id}/suspend", { params: { path: { account_id } } }));
export const resumeAccount = (account_id: string) =>
  read(client.POST("/v1/accounts/{account_id}/resume", { params: { path: { account_id } } }));
export const searchEvents = (query: { kind?: string; account?: string; job?: string; node?: string; before?: number }) =>
  read(client.GET("/v1/operator/events", { params: { query: { ...query, limit: 50 } } }));
export const listAllPayouts = (query: Page & { state?: Wire["PayoutState"] }) =>
  read(client.GET("/v1/operator/payouts", { params: { query } }));
export const approvePayout = (payout_id: string) =>
  read(client.POST("/v1/operator/payouts/{payout_id}/approve", { params: { path: { payout_id } } }));
export const refusePayout = (payout_id: string, why: string) =>
  read(client.POST("/v1/operator/payouts/{payout_id}/refuse", { params: { path: { payout_id } }, body: { why } }));
export const recordPayment = (body: Wire["RecordPayment"]) => read(client.POST("/v1/operator/payments", { body }));
export const listAllTopUps = (query: Page & { state?: Wire["TopUpState"] }) =>
  read(client.GET("/v1/operator/top-ups", { params: { query } }));
export const listAllDisputes = (query: Page) => read(client.GET("/v1/operator/disputes", { params: { query } }));
export const upholdDispute = (dispute_id: string, note: string) =>
  read(client.POST("/v1/operator/disputes/{dispute_id}/uphold", { params: { path: { dispute_id } }, body: { note } }));
export const dismissDispute = (dispute_id: string, note: string) =>
  read(client.POST("/v1/operator/disputes/{dispute_id}/dismiss", { params: { path: { dispute_id } }, body: { note } }));
export const listDistrustedNodes = (query: Page) => read(client.GET("/v1/operator/distrusted-nodes", { params: { query } }));
