// One job: what it does, how it learns, which memory it has and by which plans, and what happened to it.
import { act, ask, badge, bytes, content, el, facts, get, isDark, kept, milliseconds, number, say, seconds, sentence, show, table, time, title, trouble, watch } from "./page.js";
import { LineChart } from "./charts.js";

const job = Number(location.pathname.split("/").pop());
const place = () => el("div", { class: "chart", "data-keep": "" });
const lossPlace = place(), metricPlace = place(), ratePlace = place(), memoryPlace = place();
const lossChart = new LineChart(lossPlace, { subject: "Losses by epoch", time: false });
const metricChart = new LineChart(metricPlace, { subject: "Metrics by epoch", time: false });
const rateChart = new LineChart(ratePlace, { subject: "Learning rate by epoch", time: false });
const picturePlace = el("div", { "data-keep": "" });
let pictureOf = null;
const memoryChart = new LineChart(memoryPlace, { subject: "Memory of the job over time", text: bytes, zero: true });
const report = el("div", { "data-keep": "" });
const priorityForm = el("form", { class: "row", "data-keep": "" },
  el("label", {}, "Priority ", el("input", { name: "priority", type: "number", value: 0, min: -1000, max: 1000, size: 6, required: true })), el("button", {}, "Change"));
let memoryDrawn = 0;
let priorityShown = null;
let tracing = false;

const jobLink = (number) => el("a", { href: `/jobs/${number}` }, `${number}`);
const isActive = (j) => ["queued", "starting", "running"].includes(j.state);

function actions(j) {
  const buttons = [];
  if (isActive(j)) {
    buttons.push(j.paused ? el("button", { type: "button", "data-act": "resume" }, "Resume") : el("button", { type: "button", "data-act": "pause" }, "Pause"));
    buttons.push(el("button", { type: "button", "data-act": "cancel", class: "danger", disabled: j.cancel_requested }, j.cancel_requested ? "Being cancelled" : "Cancel"));
    if (j.phase === "training") buttons.push(el("button", { type: "button", "data-trace": "", disabled: tracing }, tracing ? "Recording …" : "Record a trace for Perfetto"));
    buttons.push(kept(priorityForm));
  } else if (["failed", "cancelled"].includes(j.state)) {
    buttons.push(el("button", { type: "button", "data-act": "retry" }, "Retry"));
  }
  return el("div", { class: "row" }, buttons);
}

function error(j) {
  if (!j.error_message) return null;
  return el("div", { class: "error", role: "group", "aria-label": "Error" }, el("p", {}, el("strong", {}, j.error_message)),
    j.error_detail ? el("p", {}, j.error_detail) : null, j.error_hint ? el("p", {}, `What to do: ${j.error_hint}`) : null,
    j.error_sqlstate ? el("p", { class: "quiet" }, `SQLSTATE ${j.error_sqlstate}`) : null);
}

function summary(j) {
  return el("section", {}, el("h2", {}, badge(j.paused && isActive(j) ? "paused" : j.state, j.state), " ", j.phase ?? ""), error(j), actions(j),
    j.percent !== null ? el("div", { class: "row" }, el("progress", { max: 100, value: j.percent, "aria-label": "progress" }), `${number(j.percent, 3)} %, epoch ${j.epoch ?? 0} of ${j.epochs ?? "?"}, step ${j.step ?? 0} of ${j.steps ?? "?"}`) : null,
    facts([
      ["Model", el("a", { href: `/models/${encodeURIComponent(j.model)}` }, j.model)],
      ["Owner", j.owner], ["Table", j.relation], ["Device", j.host && (j.device_name ? `${j.device_name} on ${j.host}` : j.host)],
      ["Reason for waiting", j.waits_for], ["Position in the queue", j.position],
      ["Ends in about", j.eta_s === null ? null : seconds(j.eta_s)],
      ["Enqueued", time(j.enqueued_at)], ["Started", j.started_at && time(j.started_at)], ["Ended", j.finished_at && time(j.finished_at)],
      ["Duration", j.duration_s === null ? null : seconds(j.duration_s)],
      ["Rows per second", j.samples_per_s === null ? null : number(j.samples_per_s, 3)],
      ["Rows predicted", j.rows_predicted === null ? null : `${number(j.rows_predicted)} of ${number(j.rows_expected)}`],
      ["Memory used", j.used_bytes === null ? null : `${bytes(j.used_bytes)} of ${bytes(j.granted_bytes)} planned`],
      ["Published version", j.version === null ? null : `${j.version}${j.metric === null ? "" : `: ${j.metric_name} ${number(j.metric)}`}`],
      ["Not deployed", j.not_deployed], ["Attempt", j.attempt > 1 ? j.attempt : null], ["Interruptions", j.interruptions || null],
      ["Threads", j.threads], ["Priority", j.priority || null],
      ["After the jobs", j.depends_on?.length ? j.depends_on.map((n, i) => [i ? ", " : "", jobLink(n)]) : null],
      ["Repeats job", j.retry_of && jobLink(j.retry_of)], ["Trial of search", j.search_id && j.search_id !== j.job_id ? jobLink(j.search_id) : null],
    ]));
}

function planTable(plans) {
  return table("Memory plans, the newest first: planned beside measured", [
    { title: "Plan", cell: (p) => `${p.attempt}.${p.generation}` },
    { title: "Reason", cell: (p) => p.reason },
    { title: "Policy", cell: (p) => p.policy },
    { title: "Unplanned peak", number: true, cell: (p) => bytes(p.liveness_peak_bytes) },
    { title: "Planned peak", number: true, cell: (p) => bytes(p.predicted_peak_bytes) },
    { title: "measured", number: true, cell: (p) => bytes(p.measured_peak_bytes) },
    { title: "Iteration, planned", number: true, cell: (p) => milliseconds(p.predicted_iteration_ms) },
    { title: "measured", number: true, cell: (p) => milliseconds(p.measured_iteration_ms) },
    { title: "Waiting for copies, planned", number: true, cell: (p) => milliseconds(p.predicted_stall_ms) },
    { title: "measured", number: true, cell: (p) => milliseconds(p.measured_stall_ms) },
    { title: "Swapped", number: true, cell: (p) => `${p.swaps} (${bytes(p.swapped_bytes)})` },
    { title: "Recomputed", number: true, cell: (p) => number(p.recomputed) },
    { title: "Planning took", number: true, cell: (p) => milliseconds(p.planning_ms) },
  ], plans.map((p) => ({ ...p, key: `${p.attempt}.${p.generation}` })));
}

function describe(detail) {
  if (detail === null || typeof detail !== "object") return String(detail ?? "");
  if (typeof detail.message === "string" && Object.keys(detail).length === 1) return detail.message;
  return Object.entries(detail).map(([k, v]) => (k.endsWith("_bytes") && typeof v === "number" ? `${k.slice(0, -6)}: ${bytes(v)}`
    : `${k}: ${typeof v === "object" ? JSON.stringify(v) : v}`).replaceAll("_", " ")).join("; ");
}

function draw(epochs) {
  if (!epochs.length) return;
  const at = epochs.map((e) => e.epoch);
  lossChart.update(at, [{ label: "training", column: epochs.map((e) => e.loss) }, { label: "validation", column: epochs.map((e) => e.valid_loss) }]);
  if (epochs.some((e) => e.learning_rate !== null)) rateChart.update(at, [{ label: "learning rate", column: epochs.map((e) => e.learning_rate) }]);
  const names = [...new Set(epochs.flatMap((e) => Object.keys(e.metrics)))].sort();
  if (names.length) metricChart.update(at, names.map((name) => ({ label: name, column: epochs.map((e) => e.metrics[name] ?? null) })));
}

async function drawMemory() {
  memoryDrawn = Date.now();
  const memory = await get(`/api/jobs/${job}/memory`);
  if (memory.at.length > 1) memoryChart.update(memory.at, [
    { label: "used", column: memory.used_bytes }, { label: "planned", column: memory.granted_bytes, dash: [6, 4] }]);
}

// Draw the newest plan once: the picture is an image, so that no name of a tensor enters the page.
function drawPlan(plan) {
  if (!plan?.adopted_at) return;
  const address = `/api/jobs/${job}/plan.svg?theme=${isDark() ? "dark" : "light"}&plan=${plan.attempt}.${plan.generation}`;
  if (address === pictureOf) return;
  pictureOf = address;
  const text = `Memory by kind of tensor over one iteration, and where each tensor is. At most ${bytes(plan.predicted_peak_bytes)} on the device, ${bytes(plan.liveness_peak_bytes)} without planning; ${plan.swaps} swapped tensors, ${plan.recomputed} operators run again.`;
  const image = el("img", { src: address, alt: text, class: "picture" });
  image.addEventListener("error", () => picturePlace.replaceChildren(el("p", { class: "quiet" }, "This plan has no picture: its step is not stored.")));
  picturePlace.replaceChildren(el("a", { href: address, target: "_blank", rel: "noopener" }, image));
}

// Ask for a recording, wait until it is there, and save it as a file.
async function recordTrace() {
  const since = await act("trace", { job });
  if (!since) return;
  tracing = true;
  try {
    for (;;) {
      const state = await get(`/api/jobs/${job}/trace`, { since });
      if (state.recorded) break;
      if (!["starting", "running"].includes(state.state)) { say("The job ended before an iteration was recorded."); return; }
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    const link = el("a", { href: `/api/jobs/${job}/trace`, download: `job-${job}-trace.json` });
    document.body.append(link);
    link.click();
    link.remove();
    say("The trace is saved. Open it at ui.perfetto.dev.");
  } catch (error) { say(sentence(error)); } finally { tracing = false; }
}

document.addEventListener("theme", () => { pictureOf = null; });

title(`Job ${job}`);
watch(`/api/jobs/${job}/live`, (data) => {
  const j = data.job;
  title(`Job ${j.job_id}: ${j.model}`);
  if (priorityShown !== j.priority) { priorityShown = j.priority; priorityForm.elements.priority.value = j.priority; }
  show(content, summary(j),
    el("section", { hidden: data.epochs.length === 0 }, el("h2", {}, "Learning"), el("h3", {}, "Loss"), kept(lossPlace), el("h3", {}, "Metrics on the validation rows"), kept(metricPlace), el("h3", {}, "Learning rate"), kept(ratePlace)),
    el("section", {}, el("h2", {}, "Memory"), kept(memoryPlace), data.plans.length ? [planTable(data.plans), el("h3", {}, "The newest plan: where each tensor is over one iteration"), kept(picturePlace)] : el("p", { class: "quiet" }, isActive(j) ? "The job has no memory plan yet." : "The job had no memory plan.")),
    data.sharing.length ? el("section", {}, el("h2", {}, "Beside other jobs"), table("Whom the job ran beside, and the throughput of the set; taking turns has 1", [
      { title: "Beside", cell: (s) => (s.beside.length ? s.beside.map((n, i) => [i ? ", " : "", jobLink(n)]) : "alone") },
      { title: "Foretold", number: true, cell: (s) => number(s.stp_foretold, 3) },
      { title: "Measured", number: true, cell: (s) => number(s.stp_measured, 3) },
      { title: "From", cell: (s) => time(s.started_at) }, { title: "Until", cell: (s) => time(s.ended_at) },
    ], data.sharing.map((s, i) => ({ ...s, key: s.started_at + i })))) : null,
    el("section", {}, el("h2", {}, "Events"), table("What happened to the job, the newest first", [
      { title: "Time", cell: (e) => time(e.at) }, { title: "Event", cell: (e) => e.kind }, { title: "Detail", wide: true, cell: (e) => describe(e.detail) },
    ], data.events.map((e) => ({ ...e, key: e.event_id })))),
    el("section", {}, el("h2", {}, "Data"), el("button", { type: "button", "data-report": "" }, "Show the report on the table's data"), kept(report)));
  draw(data.epochs);
  drawPlan(data.plans[0]);
  if (Date.now() - memoryDrawn > 5000) drawMemory().catch((e) => trouble(sentence(e)));
});

content.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-act]");
  if (button) {
    if (button.dataset.act === "cancel" && !(await ask(`Cancel job ${job}? What it has learned since its last version is lost.`, "Yes, cancel the job"))) return;
    const result = await act(button.dataset.act, { job });
    if (button.dataset.act === "retry" && result) location.assign(`/jobs/${result}`);
  }
  if (event.target.closest("button[data-trace]")) await recordTrace();
  if (event.target.closest("button[data-report]")) {
    const rows = await get(`/api/jobs/${job}/data`).catch((e) => { trouble(sentence(e)); return []; });
    report.replaceChildren(rows.length ? table("Report on the data", [
      { title: "Part", cell: (r) => r.section }, { title: "Column", cell: (r) => r.subject ?? "" }, { title: "Fact", cell: (r) => r.fact },
      { title: "Value", cell: (r) => r.value ?? "" }, { title: "Warning", cell: (r) => r.warning ?? "" }], rows)
      : el("p", { class: "quiet" }, "There is no report, or it is shown to the owner of the job only."));
  }
});
content.addEventListener("submit", (event) => {
  if (event.target !== priorityForm) return;
  event.preventDefault();
  act("priority", { job, priority: Number(event.target.elements.priority.value) });
});
