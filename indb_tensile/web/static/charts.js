// Charts by uPlot: memory stacked by job, and lines. Each has a text for screen readers.
import { bytes, colour, el, number } from "./page.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT = 230;

// Texts of the ticks of a time axis, with the date where it begins or changes.
function moments(_, values, __, ___, increment) {
  let day = "";
  return values.map((value) => {
    const at = new Date(value * 1000);
    const date = at.toLocaleDateString(undefined, { month: "short", day: "numeric" });
    const clock = increment >= 86400 ? "" : at.toLocaleTimeString(undefined, {
      hour: "2-digit", minute: "2-digit", second: increment < 60 ? "2-digit" : undefined, hourCycle: "h23" });
    const text = date === day ? clock : `${clock}\n${date}`.trim();
    day = date;
    return text;
  });
}

// Distances between the ticks of an axis of bytes: the texts have units of 1024, so these are round.
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const WHOLE_STEPS = [1, 10, 100, 1e3, 1e4, 1e5].flatMap((power) => [power, 2 * power, 5 * power]);

// The span of an axis of numbers. Values that differ by less than a hundredth are drawn as almost flat, which they are.
function around(_, low, high) {
  if (low === null) return [0, 1];
  const least = Math.max(Math.abs(low), Math.abs(high)) / 100;
  return high - low < least ? [low - 5 * least, high + 5 * least] : uPlot.rangeNum(low, high, 0.1, true);
}

// Texts of the ticks of numbers, with so many digits that neighbours differ.
function numerals(_, values) {
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) : 0;
  const largest = Math.max(...values.map(Math.abs));
  const digits = step && largest ? Math.min(12, Math.max(1, Math.ceil(Math.log10(largest / step)) + 1)) : 4;
  return values.map((value) => number(value, Math.max(digits, 2)));
}

class Chart {
  // `label` returns the text for screen readers from the data.
  constructor(place, label) {
    this.place = place;
    this.label = label;
    place.setAttribute("role", "img");
    place.dataset.keep = "";
    this.plot = null;
    this.shape = "";
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(place);
    document.addEventListener("theme", () => { this.shape = ""; if (this.last) this.draw(...this.last); });
  }

  size() { return { width: Math.max(240, this.place.clientWidth), height: HEIGHT }; }

  // `series` describe the columns of `data` after the first, which is the time or the epoch.
  draw(data, series, options) {
    this.last = [data, series, options];
    this.place.setAttribute("aria-label", this.label(data, series));
    const shape = JSON.stringify(series.map((s) => [s.label, s.stroke, s.fill, s.dash]));
    if (this.plot && shape === this.shape) { this.plot.setData(data); return; }
    this.plot?.destroy();
    this.shape = shape;
    const grid = { stroke: style("--chart-grid"), width: 1 }, text = style("--quiet");
    const axis = { stroke: text, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    this.plot = new uPlot({
      ...this.size(),
      scales: { x: { time: options.time }, y: { range: options.range } },
      axes: [options.time ? { ...axis, values: moments, space: 70 } : options.x === "epoch" ? { ...axis, incrs: WHOLE_STEPS } : axis, options.text === number
        ? { ...axis, size: 74, values: numerals }
        : { ...axis, size: 74, incrs: BYTE_STEPS, values: (_, values) => values.map((v) => options.text(v)) }],
      series: [{ label: options.time ? "time" : options.x }, ...series.map((s) => ({
        label: s.label, stroke: s.stroke, fill: s.fill, width: s.width ?? 1.5, dash: s.dash, points: { show: s.points ?? false },
        // A stacked series shows what is its own, not the sum at which it is drawn.
        value: (_, value, __, place) => {
          const own = s.own && place !== null ? this.own.get(s.label)?.[place] : value;
          return own === null || own === undefined ? "–" : options.text(own);
        },
      }))],
      legend: { live: true },
      cursor: { drag: { x: false, y: false } },
    }, data, this.place);
  }
}

const latest = (column) => column.findLast((value) => value !== null && value !== undefined);

// Split a line where the samples are further apart than `most` seconds: nobody measured there.
function withGaps(columns, most) {
  const at = columns[0], result = columns.map(() => []);
  at.forEach((moment, place) => {
    if (place && moment - at[place - 1] > most) result.forEach((column, c) => column.push(c ? null : moment - 0.001));
    result.forEach((column, c) => column.push(columns[c][place]));
  });
  return result;
}

// The memory of a device over time. `history` has the columns of /api/history.
export class MemoryChart extends Chart {
  constructor(place) {
    super(place, (data, series) => {
      const used = data[series.findIndex((s) => s.label === "used") + 1] ?? [];
      return `Device memory over time, stacked by job. In use now: ${bytes(latest(used))}; at most ${
        bytes(Math.max(0, ...used.filter((v) => v !== null)))}.`;
    });
  }

  update(history, gap) {
    const { at, budget_bytes: budget, granted_bytes: granted, used_bytes: used, jobs } = history;
    // The areas are drawn from the highest sum to the lowest, each over the one before.
    const sums = [];
    const running = at.map(() => 0);
    for (const job of jobs) {
      job.used_bytes.forEach((value, place) => { running[place] += value ?? 0; });
      sums.push({ job: job.job_id, column: [...running] });
    }
    const known = [...running];
    const hidden = used.map((value, place) => Math.max(0, value - known[place]));
    const series = [], columns = [at];
    if (hidden.some((value) => value > 0)) {
      columns.push(used);
      series.push({ label: "other users", stroke: "#8a94a3", fill: "#8a94a3" });
    }
    for (const { job, column } of sums.reverse()) {
      columns.push(column);
      series.push({ label: `job ${job}`, stroke: colour(job), fill: colour(job), own: true });
    }
    columns.push(used, granted, budget);
    series.push({ label: "used", stroke: style("--text"), width: 1 });
    series.push({ label: "planned", stroke: style("--accent"), width: 2, dash: [6, 4] });
    series.push({ label: "budget", stroke: style("--bad"), width: 2 });
    // Small jobs on a large device would be a line on the axis: then the budget lies above the chart.
    const jobsTop = Math.max(1, ...used, ...granted), budgetTop = Math.max(1, ...budget);
    const top = jobsTop > 1 && jobsTop < budgetTop / 10 ? jobsTop * 1.3 : Math.max(jobsTop, budgetTop) * 1.05;
    this.top = top;
    const owns = withGaps([at, ...jobs.map((job) => job.used_bytes)], gap);
    this.own = new Map(jobs.map((job, place) => [`job ${job.job_id}`, owns[place + 1]]));
    this.draw(withGaps(columns, gap), series, { time: true, text: bytes, range: () => [0, this.top] });
  }
}

// Lines over time or epochs. `lines` are { label, column, colour?, dash? }.
export class LineChart extends Chart {
  constructor(place, { subject, text = number, time = true, x = "epoch", zero = false }) {
    super(place, (data, series) => `${subject}. Now: ${series.map((s, i) => `${s.label} ${text(latest(data[i + 1]))}`).join(", ")}.`);
    this.options = { text, time, x, range: zero ? (_, low, high) => [0, Math.max(high, 1e-9) * 1.05] : around };
  }

  update(at, lines, gap = Infinity) {
    const series = lines.map((line, place) => ({
      label: line.label, stroke: line.colour ?? colour(place), dash: line.dash ?? (place < 8 ? undefined : [2, 3]), width: 2, points: at.length < 40,
    }));
    const columns = [at, ...lines.map((line) => line.column)];
    this.draw(this.options.time ? withGaps(columns, gap) : columns, series, this.options);
  }
}

// The memory bar of a device: planned as a frame around what is used, by job.
export function memoryBar(device, jobs) {
  const scale = 1000 / Math.max(1, device.budget_bytes);
  let x = 0;
  const parts = jobs.map((job) => {
    const width = Math.max(job.granted_bytes, job.used_bytes) * scale;
    const left = x;
    x += width;
    return [
      el("rect", { x: left, y: 0, width: Math.max(0, width - 1), height: 22, fill: colour(job.job_id), opacity: 0.35 }),
      el("rect", { x: left, y: 4, width: Math.max(0, Math.min(width, job.used_bytes * scale) - 1), height: 14,
        fill: colour(job.job_id) }),
    ];
  });
  const others = Math.max(0, device.granted_bytes - jobs.reduce((sum, job) => sum + job.granted_bytes, 0));
  const label = `${bytes(device.used_bytes)} used and ${bytes(device.granted_bytes)} planned of ${bytes(device.budget_bytes)}`;
  return el("svg", { class: "bar", viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img", "aria-label": label },
    parts, others > 0 && el("rect", { x, y: 0, width: others * scale, height: 22, fill: "#8a94a3", opacity: 0.5 }));
}

export function swatch(job) {
  return el("svg", { class: "swatch", viewBox: "0 0 11 11", "aria-hidden": "true" },
    el("rect", { width: 11, height: 11, fill: colour(job) }));
}
