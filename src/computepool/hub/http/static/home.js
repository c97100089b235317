// A plain overview, polled. Everything is written with textContent: names come from strangers.
const byId = (id) => document.getElementById(id);

async function ask(path) {
  const answer = await fetch(path);
  if (answer.status === 401) throw new Error("You are not signed in. Open a sign-in link.");
  if (!answer.ok) throw new Error((await answer.json()).message);
  return answer.json();
}

function cell(row, text, className) {
  const td = row.insertCell();
  td.textContent = text;
  if (className) td.className = className;
  return td;
}

function dot(td, kind) {
  const mark = document.createElement("span");
  mark.className = "dot " + kind;
  td.prepend(mark);
}

function showJobs(jobs) {
  const body = byId("jobs");
  body.replaceChildren();
  for (const job of jobs) {
    const row = body.insertRow();
    cell(row, job.name);
    const kind = { succeeded: "ok", failed: "bad", running: "busy" }[job.state] || "";
    dot(cell(row, job.state), kind);
    const bar = document.createElement("progress");
    bar.max = job.slice_count;
    bar.value = job.counts.succeeded;
    bar.setAttribute("aria-label", `${job.counts.succeeded} of ${job.slice_count} slices done`);
    cell(row, "").append(bar);
    cell(row, `${job.counts.succeeded}/${job.slice_count}`, "number");
    cell(row, job.counts.running + job.counts.leased, "number");
    cell(row, job.counts.queued, "number");
    cell(row, job.counts.failed, "number");
    const time = cell(row, new Date(job.created_at).toLocaleTimeString());
    time.title = job.created_at;
  }
  if (!jobs.length) cell(body.insertRow(), "No jobs yet: computepool run your_script.py", "soft").colSpan = 8;
}

function showNodes(nodes) {
  const body = byId("nodes");
  body.replaceChildren();
  for (const node of nodes) {
    const row = body.insertRow();
    cell(row, node.name + (node.synthetic ? " (synthetic)" : ""));
    dot(cell(row, node.online ? node.state : "offline"), node.online ? "ok" : "bad");
    const gpus = node.hardware.gpus.map((gpu) => gpu.name).join(", ");
    cell(row, gpus || node.hardware.cpu_name || "CPU only");
    cell(row, node.region || "–");
    const slots = cell(row, node.slots.map((s) => s.name).join(" "));
    if (node.slots.some((s) => s.busy)) dot(slots, "busy");
  }
  if (!nodes.length) cell(body.insertRow(), "No nodes yet: computepool node", "soft").colSpan = 5;
}

async function refresh() {
  try {
    const [me, jobs, nodes] = await Promise.all([ask("/v1/accounts/me"), ask("/v1/jobs"), ask("/v1/nodes")]);
    byId("who").textContent = `${me.name} · ${me.roles.join(", ")}`;
    showJobs(jobs.jobs);
    showNodes(nodes.nodes);
    byId("problem").textContent = "";
  } catch (error) {
    byId("problem").textContent = error.message;
  }
}

refresh();
setInterval(refresh, 2000);
