import { number, seconds, bytes } from "./page.js";
import { listingPage } from "./listing.js";

listingPage({
  name: "usage",
  caption: "Use of the devices by owner and model, the largest first",
  empty: "No device has been used yet.",
  filters: [{ name: "model", title: "Model" }, { name: "owner", title: "Owner" }],
  columns: [
    { title: "Owner", sort: "owner", cell: (u) => u.owner },
    { title: "Model", sort: "model", cell: (u) => u.model },
    { title: "Device-seconds", number: true, sort: "device_seconds", cell: (u) => number(u.device_seconds) },
    { title: "Today", number: true, sort: "device_seconds_today", cell: (u) => number(u.device_seconds_today) },
    { title: "Memory over time", number: true, sort: "byte_seconds", cell: (u) => `${bytes(u.byte_seconds)} · s` },
    { title: "Time on the device", number: true, sort: "running_seconds", cell: (u) => seconds(u.running_seconds) },
    { title: "Slowdown", number: true, sort: "slowdown", cell: (u) => number(u.slowdown, 3) },
    { title: "Jobs ended", number: true, sort: "jobs_ended", cell: (u) => number(u.jobs_ended) },
  ],
});
