import { badge, el, number, seconds } from "./page.js";
import { listingPage } from "./listing.js";

listingPage({
  name: "queue",
  caption: "Waiting jobs, in approximately the order in which they will start",
  empty: "No jobs are waiting.",
  limit: 100,
  filters: [{ name: "model", title: "Model" }, { name: "owner", title: "Owner" }],
  columns: [
    { title: "Position", number: true, cell: (q) => number(q.position) },
    { title: "Job", cell: (q) => el("a", { href: `/jobs/${q.job_id}` }, `${q.job_id}`) },
    { title: "Model", cell: (q) => q.model },
    { title: "Owner", cell: (q) => q.owner },
    { title: "Priority", number: true, cell: (q) => number(q.priority) },
    { title: "State", cell: (q) => [badge(q.paused ? "paused" : q.state), q.phase ? ` ${q.phase}` : null] },
    { title: "Waits for", wide: true, cell: (q) => q.waits_for ?? "–" },
    { title: "Waiting for", number: true, cell: (q) => seconds(q.waiting) },
  ],
});
