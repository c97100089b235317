// From the form to the job, and the same job as a command and as Python: three ways to say one thing.

export interface Draft {
  name: string;
  mode: "script" | "command";
  script: string;
  command: string;
  slices: number;
  gpu: boolean;
  vramGb: number;
  ramMb: number;
  cores: number;
  diskGb: number;
  tier: string;
  region: string;
  ceiling: string;
  prefer: "value" | "cheapest" | "fastest";
  kind: string;
  retries: number;
  wallMinutes: number;
  compare: "none" | "exact" | "numeric";
  verify: "audit" | "quorum";
}

export const START: Draft = {
  name: "hello-grid",
  mode: "script",
  script: `import os

index = int(os.environ["COMPUTEPOOL_SLICE_INDEX"])
print(f"slice {index} says hello")

with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "square.txt"), "w") as out:
    out.write(str(index * index))
`,
  command: "nproc",
  slices: 4,
  gpu: false,
  vramGb: 0,
  ramMb: 512,
  cores: 1,
  diskGb: 1,
  tier: "",
  region: "",
  ceiling: "",
  prefer: "value",
  kind: "compute",
  retries: 2,
  wallMinutes: 10,
  compare: "none",
  verify: "audit",
};

const GB = 1_000_000_000;
const MB = 1_000_000;

/** A command line as a shell would split it; null when a quote is left open. */
export function splitCommand(text: string): string[] | null {
  const words: string[] = [];
  let word = "";
  let begun = false;
  let quote = "";
  for (let index = 0; index < text.length; index += 1) {
    const letter = text[index] ?? "";
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && index + 1 < text.length) word += text[++index] ?? "";
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      begun = true;
    } else if (letter === "\\" && index + 1 < text.length) {
      word += text[++index] ?? "";
      begun = true;
    } else if (/\s/.test(letter)) {
      if (begun) words.push(word);
      word = "";
      begun = false;
    } else {
      word += letter;
      begun = true;
    }
  }
  if (quote) return null;
  if (begun) words.push(word);
  return words;
}

export function quoteWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function toRequirements(draft: Draft, ceilingMicrocredits: number | null) {
  return {
    gpu: draft.gpu,
    vram_bytes: draft.gpu ? draft.vramGb * GB : 0,
    ram_bytes: draft.ramMb * MB,
    cores: draft.cores,
    disk_bytes: draft.diskGb * GB,
    tiers: draft.tier ? [draft.tier] : [],
    regions: draft.region ? [draft.region.toUpperCase()] : [],
    ceiling_microcredits_per_hour: ceilingMicrocredits,
  };
}

export function toSpec(draft: Draft, ceilingMicrocredits: number | null) {
  return {
    name: draft.name,
    kind: draft.kind,
    script: draft.mode === "script" ? draft.script : null,
    command: draft.mode === "command" ? (splitCommand(draft.command) ?? []) : [],
    slice_count: draft.slices,
    retries: draft.retries,
    wall_seconds: draft.wallMinutes * 60,
    prefer: draft.prefer,
    requirements: toRequirements(draft, ceilingMicrocredits),
    ...(draft.compare === "none" ? {} : { compare: { kind: draft.compare }, verify: draft.verify }),
  };
}

/** What a job that was submitted looked like, to run it again. */
export function fromSpec(spec: {
  name?: string;
  kind?: string;
  script?: string | null;
  command?: string[];
  slice_count?: number;
  retries?: number;
  wall_seconds?: number;
  prefer?: Draft["prefer"];
  compare?: { kind?: string } | null;
  verify?: string;
  requirements?: { gpu?: boolean; vram_bytes?: number; ram_bytes?: number; cores?: number; disk_bytes?: number; tiers?: string[]; regions?: string[]; ceiling_microcredits_per_hour?: bigint | number | null };
}): Draft {
  const asked = spec.requirements ?? {};
  const ceiling = asked.ceiling_microcredits_per_hour;
  return {
    ...START,
    name: spec.name ?? "",
    mode: spec.script ? "script" : "command",
    script: spec.script ?? "",
    command: (spec.command ?? []).map(quoteWord).join(" "),
    slices: spec.slice_count ?? 1,
    gpu: asked.gpu ?? false,
    vramGb: Math.ceil((asked.vram_bytes ?? 0) / GB),
    ramMb: Math.ceil((asked.ram_bytes ?? 512 * MB) / MB),
    cores: asked.cores ?? 1,
    diskGb: Math.ceil((asked.disk_bytes ?? GB) / GB),
    tier: asked.tiers?.[0] ?? "",
    region: asked.regions?.[0] ?? "",
    ceiling: ceiling === null || ceiling === undefined ? "" : String(Number(ceiling) / 1e6),
    prefer: spec.prefer ?? "value",
    kind: spec.kind ?? "compute",
    retries: spec.retries ?? 2,
    wallMinutes: Math.max(1, Math.ceil((spec.wall_seconds ?? 600) / 60)),
    // A command that compares comes with files, which this form does not send.
    compare: !spec.compare || spec.verify === "none" || spec.compare.kind === "command" ? "none" : spec.compare.kind === "numeric" ? "numeric" : "exact",
    verify: spec.verify === "quorum" ? "quorum" : "audit",
  };
}

export function toCommandLine(draft: Draft): string {
  const words = ["computepool", "run"];
  const add = (flag: string, value: string | number) => words.push(flag, quoteWord(String(value)));
  if (draft.name) add("--name", draft.name);
  if (draft.slices > 1) add("--slices", draft.slices);
  if (draft.gpu && !draft.vramGb) words.push("--gpu");
  if (draft.gpu && draft.vramGb) add("--vram", `${draft.vramGb}GB`);
  if (draft.ramMb !== 512) add("--ram", `${draft.ramMb}MB`);
  if (draft.cores !== 1) add("--cores", draft.cores);
  if (draft.diskGb !== 1) add("--disk", `${draft.diskGb}GB`);
  if (draft.tier) add("--tier", draft.tier);
  if (draft.region) add("--region", draft.region.toUpperCase());
  if (draft.ceiling) add("--max-price", draft.ceiling);
  if (draft.prefer !== "value") add("--prefer", draft.prefer);
  if (draft.kind !== "compute") add("--kind", draft.kind);
  if (draft.retries !== 2) add("--retries", draft.retries);
  if (draft.wallMinutes !== 60) add("--wall", `${draft.wallMinutes}m`);
  if (draft.compare !== "none") add("--compare", draft.compare);
  if (draft.compare !== "none" && draft.verify === "quorum") add("--verify", "quorum");
  if (draft.mode === "script") words.push("script.py");
  else words.push("--", ...(splitCommand(draft.command) ?? []).map(quoteWord));
  return words.join(" ");
}

export function toPython(draft: Draft): string {
  const told: [string, string][] = [];
  if (draft.mode === "script") told.push(["script", '"script.py"']);
  else told.push(["command", JSON.stringify(splitCommand(draft.command) ?? [])]);
  if (draft.name) told.push(["name", JSON.stringify(draft.name)]);
  if (draft.slices > 1) told.push(["slices", String(draft.slices)]);
  if (draft.gpu && !draft.vramGb) told.push(["gpu", "True"]);
  if (draft.gpu && draft.vramGb) told.push(["vram", `"${draft.vramGb}GB"`]);
  if (draft.ramMb !== 512) told.push(["ram", `"${draft.ramMb}MB"`]);
  if (draft.cores !== 1) told.push(["cores", String(draft.cores)]);
  if (draft.diskGb !== 1) told.push(["disk", `"${draft.diskGb}GB"`]);
  if (draft.tier) told.push(["tiers", JSON.stringify([draft.tier])]);
  if (draft.region) told.push(["regions", JSON.stringify([draft.region.toUpperCase()])]);
  if (draft.ceiling) told.push(["max_price", JSON.stringify(draft.ceiling)]);
  if (draft.prefer !== "value") told.push(["prefer", `"${draft.prefer}"`]);
  if (draft.kind !== "compute") told.push(["kind", JSON.stringify(draft.kind)]);
  if (draft.retries !== 2) told.push(["retries", String(draft.retries)]);
  if (draft.wallMinutes !== 60) told.push(["wall_seconds", String(draft.wallMinutes * 60)]);
  if (draft.compare !== "none") told.push(["compare", `"${draft.compare}"`]);
  if (draft.compare !== "none" && draft.verify === "quorum") told.push(["verify", '"quorum"']);
  const lines = told.map(([name, value]) => `    ${name}=${value},`);
  return ["from computepool.sdk import Client", "", "job = Client().submit(", ...lines, ")", "job.wait()", 'job.download("results")'].join("\n");
}
