// The start page: each device with its memory over time, its jobs, who runs beside whom, and the head of the queue.
import { badge, bytes, content, el, facts, get, kept, milliseconds, number, seconds, show, table, title, trouble, watch, sentence } from "./page.js";
import { LineChart, MemoryChart, memoryBar, swatch } from "./charts.js";

const AGES = { "5m": "5 minutes", "1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days", "30d": "30 days" };
const GAPS = { "5m": 8, "1h": 40, "6h": 130, "1d": 260, "7d": 1300, "30d": 5000 };
let age = "5m";
const charts = new Map();

function chartsOf(worker) {
  if (!charts.has(worker)) {
    const memory = el("div", { class: "chart", "data-keep": "" }), copies = el("div", { class: "chart", "data-keep": "" });
    charts.set(worker, {
      memory, copies, drawn: 0,
      memoryChart: new MemoryChart(memory),
      copyChart: new LineChart(copies, { subject: "Copies between device and host", text: (v) => `${bytes(v)}/s`, zero: true }),
    });
  }
  return charts.get(worker);
}

async function drawHistory(worker, link) {
  const entry = chartsOf(worker);
  entry.drawn = Date.now();
  entry.link = link;
  try {
    const history = await get("/api/history", { worker, age });
    if (!history.at.length) return;
    entry.memoryChart.update(history, GAPS[age]);
    const lines = [{ label: "each way", column: history.copied }];
    if (link) lines.push({ label: "link", column: history.at.map(() => link * 1e6), dash: [6, 4] });
    entry.copyChart.update(history.at, lines, GAPS[age]);
  } catch (error) { trouble(sentence(error)); }
}

const jobLink = (job) => el("a", { href: `/jobs/${job.job_id}` }, `${job.job_id}`);

function jobTable(jobs) {
  return table("Jobs on this device", [
    { title: "Job", cell: (j) => [swatch(j.job_id), " ", jobLink(j)] },
    { title: "Model", cell: (j) => j.model },
    { title: "Owner", cell: (j) => j.owner },
    { title: "Activity", cell: (j) => [badge("running", j.phase ?? "predicting"), " ",
      j.epochs ? el("progress", { max: 100, value: j.percent ?? 0, "aria-label": `job ${j.job_id}: ${number(j.percent ?? 0, 3)} percent done` }) : null,
      j.epochs ? ` epoch ${j.epoch ?? 0} of ${j.epochs}` : null] },
    { title: "Planned", number: true, cell: (j) => bytes(j.granted_bytes) },
    { title: "Used", number: true, cell: (j) => bytes(j.used_bytes) },
    { title: "Iteration, planned", number: true, cell: (j) => milliseconds(j.predicted_iteration_ms) },
    { title: "measured", number: true, cell: (j) => milliseconds(j.measured_iteration_ms) },
    { title: "waiting for copies", number: true, cell: (j) => milliseconds(j.measured_stall_ms) },
    { title: "Loss", number: true, cell: (j) => number(j.loss) },
    { title: "Ends in", number: true, cell: (j) => seconds(j.eta_s) },
  ], jobs.map((job) => ({ ...job, key: job.job_id })));
}

// The name tells a device from others of its host where it has a number.
function deviceTitle(device) {
  return (device.device_name ?? "").includes(":") ? `${device.device_name} (${device.device})` : device.device;
}

function deviceSection(device, jobs) {
  const entry = chartsOf(device.worker_id);
  return el("section", { "data-key": `device ${device.worker_id}`, "aria-label": `Device of worker ${device.worker_id}` },
    el("h2", {}, `${deviceTitle(device)} on ${device.host} `, badge(device.alive ? "alive" : "dead", device.alive ? "alive" : "stopped")),
    facts([
      ["In use", `${bytes(device.used_bytes)} of ${bytes(device.budget_bytes)}`],
      ["Planned", bytes(device.granted_bytes)],
      ["Most at one time", bytes(device.high_water_bytes)],
      ["Host memory of jobs", bytes(device.host_bytes)],
      ["Jobs", number(device.jobs)],
      ["Busy", device.busy_percent === null ? null : `${device.busy_percent} %`],
      ["Outside the shared memory", device.outside_bytes === null ? null : bytes(device.outside_bytes)],
    ]),
    device.alive ? [
      memoryBar(device, jobs),
      el("p", { class: "quiet" }, "Pale: planned. Full: used. Grey: other users."),
      el("div", { class: "row", role: "group", "aria-label": "Span of time" }, "Memory of the last ",
        Object.entries(AGES).map(([name, text]) => el("button", { type: "button", "data-age": name, "aria-pressed": String(name === age) }, text))),
      kept(entry.memory),
      el("h3", {}, "Copies between device and host, each way"),
      kept(entry.copies)] : el("p", { class: "quiet" }, `Its controller stopped ${seconds(device.age_s)} ago.`),
    jobs.length ? jobTable(jobs) : device.alive && el("p", { class: "quiet" }, "No job of yours is on this device."));
}

function setSection(sets) {
  if (!sets.length) return null;
  return el("section", { "data-key": "sets" }, el("h2", {}, "Side by side"),
    table("Jobs that run beside each other, and their throughput; taking turns has 1", [
      { title: "Jobs", cell: (s) => s.jobs.map((job, place) => [place ? ", " : "", jobLink({ job_id: job })]) },
      { title: "Foretold", number: true, cell: (s) => number(s.foretold, 3) },
      { title: "Measured", number: true, cell: (s) => number(s.measured, 3) },
      { title: "Age", number: true, cell: (s) => seconds(s.age_s) },
    ], sets.map((set) => ({ ...set, key: set.jobs.join(" ") }))));
}

function queueSection(queue, length) {
  return el("section", { "data-key": "queue" }, el("h2", {}, "Queue"),
    queue.length === 0 ? el("p", { class: "quiet" }, "No jobs are waiting.") : table(
      `The next ${queue.length} of ${length} waiting jobs, and what each waits for`, [
        { title: "Job", cell: jobLink },
        { title: "Model", cell: (q) => q.model },
        { title: "Owner", cell: (q) => q.owner },
        { title: "Waits for", wide: true, cell: (q) => q.waits_for ?? "–" },
        { title: "Waiting for", number: true, cell: (q) => seconds(q.waiting_s) },
      ], queue.slice(0, 10).map((row) => ({ ...row, key: row.job_id }))),
    length > 10 ? el("p", {}, el("a", { href: "/queue" }, "The whole queue")) : null);
}

title("Device");
watch("/api/overview", (data) => {
  const sections = data.devices.map((device) => deviceSection(device, data.jobs.filter((j) => j.worker_id === device.worker_id)));
  show(content,
    sections.length ? null : el("section", {}, el("h2", {}, "No device"),
      el("p", {}, "No controller has reported a device within the last hour. Start one with ", el("code", {}, "tensile up"), ".")),
    sections, setSection(data.sets), queueSection(data.queue, data.queue_length));
  for (const device of data.devices.filter((d) => d.alive)) {
    const entry = chartsOf(device.worker_id);
    if (Date.now() - entry.drawn > (age === "5m" ? 2000 : 15000)) drawHistory(device.worker_id, device.link_mb_per_s);
  }
});
content.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-age]");
  if (!button) return;
  age = button.dataset.age;
  content.querySelectorAll("button[data-age]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.age === age)));
  charts.forEach((entry, worker) => { entry.drawn = 0; drawHistory(worker, entry.link); });
});
