import { el, number, time } from "./page.js";
import { listingPage } from "./listing.js";

listingPage({
  name: "models",
  caption: "Models",
  empty: "There is no model that this role owns or may predict with.",
  filters: [{ name: "model", title: "Model" }, { name: "owner", title: "Owner" }],
  columns: [
    { title: "Model", sort: "model", cell: (m) => el("a", { href: `/models/${encodeURIComponent(m.model)}` }, m.model) },
    { title: "Owner", sort: "owner", cell: (m) => m.owner },
    { title: "Task", sort: "task", cell: (m) => m.task ?? "–" },
    { title: "Target", cell: (m) => m.target ?? "–" },
    { title: "Versions", number: true, sort: "versions", cell: (m) => number(m.versions) },
    { title: "Deployed", number: true, cell: (m) => number(m.deployed) },
    { title: "Metric", number: true, sort: "metric", cell: (m) => (m.metric === null ? "–" : `${m.metric_name} ${number(m.metric)}`) },
    { title: "Gradient boosting", number: true, cell: (m) => number(m.baseline) },
    { title: "Parameters", number: true, sort: "parameters", cell: (m) => number(m.parameters) },
    { title: "Trained", sort: "trained_at", cell: (m) => time(m.trained_at) },
  ],
});
