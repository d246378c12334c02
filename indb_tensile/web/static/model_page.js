// One model: its versions, what is deployed, how each version errs, and what its columns add.
import { act, ask, badge, bytes, content, el, facts, get, kept, number, repeat, sentence, show, table, time, title } from "./page.js";
import { LineChart } from "./charts.js";

const model = decodeURIComponent(location.pathname.slice("/models/".length));
const figures = el("div", { "data-keep": "" });
let versions = [];
let chosen = null;

const asText = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
const chart = (node, options, at, lines) => {
  const made = new LineChart(node, options);
  requestAnimationFrame(() => made.update(at, lines));
  return node;
};
const place = () => el("div", { class: "chart" });

const drawings = {
  confusion(rows) {
    const labels = [...new Set(rows.flatMap((r) => [r.actual, r.predicted]))].sort();
    const count = new Map(rows.map((r) => [`${r.actual}\n${r.predicted}`, r.rows]));
    const most = Math.max(1, ...rows.map((r) => r.rows));
    return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Confusion matrix" },
      el("table", { class: "confusion" }, el("caption", {}, "Held-out rows: the actual label in each row, the predicted label in each column"),
        el("thead", {}, el("tr", {}, el("td", {}), labels.map((l) => el("th", { scope: "col", class: "number" }, l)))),
        el("tbody", {}, labels.map((actual) => el("tr", {}, el("th", { scope: "row" }, actual), labels.map((predicted) => {
          const rows = count.get(`${actual}\n${predicted}`) ?? 0;
          return el("td", {}, number(rows), el("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
            el("rect", { width: (100 * rows) / most, height: 6, fill: actual === predicted ? "#009e73" : "#d55e00" })));
        }))))));
  },
  roc(rows) {
    return [...new Set(rows.map((r) => r.class))].map((label) => {
      const points = rows.filter((r) => r.class === label).sort((a, b) => a.false_positive_rate - b.false_positive_rate);
      return [el("h3", {}, `Label ${label}: true positives by false positives`),
        chart(place(), { subject: `ROC curve of ${label}`, time: false, x: "false positive rate", zero: true },
          points.map((p) => p.false_positive_rate),
          [{ label: "true positive rate", column: points.map((p) => p.true_positive_rate) },
            { label: "chance", column: points.map((p) => p.false_positive_rate), dash: [6, 4] }])];
    });
  },
  calibration(rows) {
    return [el("h3", {}, "Share of right predictions by their probability"),
      chart(place(), { subject: "Calibration", time: false, x: "mean probability", zero: true }, rows.map((r) => r.mean_predicted),
        [{ label: "observed", column: rows.map((r) => r.observed_share) }, { label: "perfect", column: rows.map((r) => r.mean_predicted), dash: [6, 4] }]),
      table("Bins", [{ title: "Mean probability", number: true, cell: (r) => number(r.mean_predicted) }, { title: "Right", number: true, cell: (r) => number(r.observed_share) },
        { title: "Rows", number: true, cell: (r) => number(r.rows) }], rows)];
  },
  importance(rows) {
    const most = Math.max(1e-12, ...rows.map((r) => Math.abs(r.importance ?? 0)));
    const plain = (value) => (value !== null && Math.abs(value) < 1e-12 ? 0 : value);  // rounding errors of a mean
    return table("How much worse the metric gets if the values of a feature are permuted", [
      { title: "Feature", cell: (r) => r.feature }, { title: "Importance", number: true, cell: (r) => number(plain(r.importance)) },
      { title: "", cell: (r) => el("progress", { max: most, value: Math.max(0, r.importance ?? 0), "aria-hidden": "true" }) },
      { title: "± deviation", number: true, cell: (r) => number(r.deviation) }, { title: "Metric", cell: (r) => r.metric }], rows);
  },
  drift(rows) {
    if (!rows.length) return el("p", { class: "quiet" }, `The inputs of this version's predictions are not counted. Its owner can ask for it: select tensile_measure_drift('${model.replaceAll("'", "''")}');`);
    const share = (count, total) => (total ? `${number((100 * count) / total)} %` : "–");
    const bins = (r) => (r.bins === null ? r.reason ?? "–" : el("details", {}, el("summary", {}, "bins"), table(`Shares of the rows in each bin of ${r.feature}`, [
      { title: "Bin", cell: (b) => b.bin }, { title: "Training", number: true, cell: (b) => share(b.training, r.training_rows) },
      { title: "Predicted", number: true, cell: (b) => share(b.predicted, r.predicted_rows) }], r.bins)));
    return table(`Inputs of ${number(rows[0].predicted_rows)} predicted rows beside ${number(rows[0].training_rows)} training rows`, [
      { title: "Feature", cell: (r) => r.feature ?? "–" }, { title: "Compared", cell: (r) => r.measure ?? "–" },
      { title: "Stability index", number: true, cell: (r) => number(r.psi) }, { title: "Drift", cell: (r) => badge(DRIFT[r.reading] ?? "", r.reading) },
      { title: "", wide: true, cell: bins }], rows);
  },
};
const DRIFT = { stable: "succeeded", moderate: "paused", large: "failed" };
const TITLES = { confusion: "Confusion matrix", roc: "ROC curve", calibration: "Calibration", importance: "Feature importance", drift: "Drift of inputs" };

async function draw(name) {
  figures.replaceChildren(el("p", { class: "waiting" }, `Computing: ${TITLES[name].toLowerCase()} of version ${chosen}${name === "drift" ? "" : " on its held-out rows"} …`));
  try {
    const rows = await get(`/api/figure/${name}`, { model, version: chosen });
    figures.replaceChildren(...[drawings[name](rows)].flat(9));
  } catch (error) {
    figures.replaceChildren(el("p", { class: "trouble", role: "alert" }, sentence(error)));
  }
}

function versionTable() {
  return table("Versions, the newest first", [
    { title: "Version", cell: (v) => [`${v.version} `, v.deployed ? badge("alive", "deployed") : null] },
    { title: "Metric", number: true, cell: (v) => (v.metric === null ? "–" : `${v.metric_name} ${number(v.metric)}`) },
    { title: "Gradient boosting", number: true, cell: (v) => number(v.baseline) },
    { title: "Network", cell: (v) => v.architecture?.type ?? "–" },
    { title: "Parameters", number: true, cell: (v) => number(v.parameters) },
    { title: "Size", number: true, cell: (v) => bytes(v.weights_bytes) },
    { title: "Rows", number: true, cell: (v) => number(v.rows) },
    { title: "Job", cell: (v) => (v.job === null ? "–" : el("a", { href: `/jobs/${v.job}` }, `${v.job}`)) },
    { title: "Trained", cell: (v) => time(v.trained_at) },
    { title: "", cell: (v) => (v.deployed ? null : el("button", { type: "button", "data-deploy": v.version }, `Deploy ${v.version}`)) },
  ], versions.map((v) => ({ ...v, key: v.version })));
}

function details(v) {
  return el("details", {}, el("summary", {}, `All about version ${v.version}`), facts([
    ["Features", (v.features ?? []).join(", ")], ["Split", asText(v.split)], ["Hyper-parameters", el("pre", {}, JSON.stringify(v.hyperparams, null, 1) ?? "–")],
    ["Settings", el("pre", {}, JSON.stringify(v.settings, null, 1) ?? "–")], ["Architecture", el("pre", {}, JSON.stringify(v.architecture, null, 1) ?? "–")],
    ["Metrics on held-out rows", el("pre", {}, Object.entries(v.metrics ?? {}).map(([k, x]) => `${k} ${typeof x === "number" ? number(x) : asText(x)}`).join("\n"))],
  ]));
}

title(`Model ${model}`);
repeat(async () => {
  const data = await get("/api/model", { model });
  versions = data.versions;
  chosen ??= data.model.deployed ?? versions[0]?.version ?? null;
  const v = versions.find((x) => x.version === chosen);
  show(content,
    el("section", {}, facts([["Owner", data.model.owner], ["Task", data.model.task], ["Target", data.model.target],
      ["Predicts", data.model.deployed === null ? "no version is deployed" : `version ${data.model.deployed}`],
      ["Metric", data.model.metric === null ? null : `${data.model.metric_name} ${number(data.model.metric)}`],
      ["Gradient boosting has", data.model.baseline === null ? null : number(data.model.baseline)]]),
    el("div", { class: "row" }, el("button", { type: "button", "data-rollback": "", disabled: data.deployments.length < 2 }, "Roll back to the version before"))),
    el("section", {}, el("h2", {}, "Versions"), versions.length ? versionTable() : el("p", { class: "quiet" }, "No version is published, or it belongs to another role.")),
    v ? el("section", {}, el("h2", {}, "How a version predicts"),
      el("div", { class: "row" }, el("label", {}, "Version ", el("select", { id: "version" }, versions.map((x) => el("option", { value: x.version, selected: x.version === chosen, "data-key": x.version }, `${x.version}`)))),
        Object.entries(TITLES).map(([name, text]) => el("button", { type: "button", "data-figure": name }, text))),
      kept(figures), details(v)) : null,
    data.deployments.length ? el("section", {}, el("h2", {}, "Deployments"), table("Which version predicted from when on", [
      { title: "Time", cell: (d) => time(d.deployed_at) }, { title: "From", number: true, cell: (d) => number(d.from_version) }, { title: "To", number: true, cell: (d) => number(d.to_version) },
      { title: "By", cell: (d) => d.deployed_by ?? "–" }, { title: "Reason", wide: true, cell: (d) => d.reason ?? "" }], data.deployments.map((d, i) => ({ ...d, key: d.deployed_at + i })))) : null);
}, 5000);

content.addEventListener("click", async (event) => {
  const deploy = event.target.closest("button[data-deploy]"), figure = event.target.closest("button[data-figure]");
  if (deploy && (await ask(`Deploy version ${deploy.dataset.deploy}? New statements predict with it at once.`, "Yes, deploy it"))) {
    await act("deploy", { model, version: Number(deploy.dataset.deploy) });
  }
  if (event.target.closest("button[data-rollback]") && (await ask("Deploy the version that was deployed before?", "Yes, roll back"))) await act("rollback", { model });
  if (figure) draw(figure.dataset.figure);
});
content.addEventListener("change", (event) => {
  if (event.target.id === "version") { chosen = Number(event.target.value); figures.replaceChildren(); }
});
