import { badge, el, number, seconds, time } from "./page.js";
import { listingPage } from "./listing.js";

listingPage({
  name: "jobs",
  caption: "Jobs, the newest first",
  empty: "No job passes these filters. Jobs of other users are not shown.",
  filters: [
    { name: "state", title: "State", choices: ["queued", "starting", "running", "succeeded", "failed", "cancelled"] },
    { name: "model", title: "Model" },
    { name: "owner", title: "Owner" },
  ],
  columns: [
    { title: "Job", sort: "job_id", cell: (j) => el("a", { href: `/jobs/${j.job_id}` }, `${j.job_id}`) },
    { title: "Model", sort: "model", cell: (j) => el("a", { href: `/models/${encodeURIComponent(j.model)}` }, j.model) },
    { title: "Owner", sort: "owner", cell: (j) => j.owner },
    { title: "Table", cell: (j) => j.relation },
    { title: "State", sort: "state", cell: (j) => [badge(j.state), j.phase ? ` ${j.phase}` : null] },
    { title: "Epoch", number: true, cell: (j) => (j.epochs ? `${j.epoch ?? 0} of ${j.epochs}` : "–") },
    { title: "Metric", number: true, sort: "metric", cell: (j) => (j.metric === null ? "–" : `${j.metric_name} ${number(j.metric)}`) },
    { title: "Enqueued", sort: "enqueued_at", cell: (j) => time(j.enqueued_at) },
    { title: "Took", number: true, sort: "took", cell: (j) => seconds(j.took) },
    { title: "Note", wide: true, cell: (j) => j.note ?? "" },
  ],
});
