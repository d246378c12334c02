// A page with one list: filters, sort keys and pages are in the address, so that it can be sent to somebody.
import { content, el, get, kept, repeat, show, table } from "./page.js";

export function listingPage({ name, columns, filters = [], caption, empty, limit = 50 }) {
  const address = new URLSearchParams(location.search);
  const offset = () => Number(address.get("offset") ?? 0);
  const form = el("form", { class: "row", role: "search", "data-keep": "" }, filters.map((filter) => {
    const id = `filter-${filter.name}`;
    const field = filter.choices
      ? el("select", { id, name: filter.name }, el("option", { value: "" }, "all"), filter.choices.map((choice) => el("option", { value: choice }, choice)))
      : el("input", { id, name: filter.name, type: "search", size: 16 });
    return el("label", { for: id }, `${filter.title} `, field);
  }), filters.length ? el("button", {}, "Filter") : null);
  for (const field of form.elements) if (field.name) field.value = address.get(field.name) ?? "";
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    for (const field of form.elements) {
      if (!field.name) continue;
      if (field.value) address.set(field.name, field.value); else address.delete(field.name);
    }
    address.delete("offset");
    go();
  });

  function heading(column) {
    if (!column.sort) return column.title;
    const present = address.get("sort"), up = present === column.sort, down = present === `-${column.sort}`;
    return el("button", { type: "button", "data-sort": down ? column.sort : `-${column.sort}` }, `${column.title}${up ? " ↑" : down ? " ↓" : ""}`);
  }
  function ordered(column) {
    const present = address.get("sort");
    return present === column.sort && column.sort ? "ascending" : column.sort && present === `-${column.sort}` ? "descending" : null;
  }

  async function load() {
    const parameters = {};
    for (const [key, value] of address) parameters[key] = value;
    const { rows, more } = await get(`/api/listings/${name}`, { limit, ...parameters });
    const first = offset() + 1, last = offset() + rows.length;
    show(content, el("section", {}, kept(form),
      rows.length === 0 ? el("p", { class: "quiet" }, empty)
        : table(`${caption}: ${first} to ${last}${more ? " and more" : ""}`, columns,
          rows.map((row, place) => ({ ...row, key: row.job_id ?? place })),
          (column) => [heading(column), { "aria-sort": ordered(column) }]),
      el("div", { class: "row" },
        el("button", { type: "button", "data-step": -limit, disabled: offset() === 0 }, "Earlier page"),
        el("button", { type: "button", "data-step": limit, disabled: !more }, "Next page"))));
  }

  function go() {
    history.pushState(null, "", address.size ? `?${address}` : location.pathname);
    load().catch(() => {});
  }
  content.addEventListener("click", (event) => {
    const sort = event.target.closest("button[data-sort]"), step = event.target.closest("button[data-step]");
    if (sort) { address.set("sort", sort.dataset.sort); address.delete("offset"); go(); }
    if (step) {
      const next = Math.max(0, offset() + Number(step.dataset.step));
      if (next) address.set("offset", next); else address.delete("offset");
      go();
    }
  });
  addEventListener("popstate", () => location.reload());
  repeat(load, 3000);
}
