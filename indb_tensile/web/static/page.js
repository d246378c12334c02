// What all pages share: elements, texts for values, requests, live streams, messages.

export function el(tag, attributes = {}, ...children) {
  const svg = tag === "svg" || tag === "rect" || tag === "line" || tag === "title";
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

// Stand for a node that stays as it is, such as a chart or an open form, in a tree that is built anew.
export function kept(node) {
  const stub = el("span", { "data-stub": "" });
  stub.kept = node;
  return stub;
}

// Make the children of `old` equal to the new ones, and keep nodes that need not change, so that focus, selection and
// scroll position stay where they are.
export function show(old, ...children) {
  morphChildren(old, el("div", {}, ...children));
}

function morphChildren(old, fresh) {
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, place) => {
    if (place >= before.length) old.append(settled(node));
    else morph(before[place], node);
  });
  before.slice(after.length).forEach((node) => node.remove());
}

function morph(old, fresh) {
  if (fresh.kept) {
    if (old !== fresh.kept) old.replaceWith(fresh.kept);
  } else if ("keep" in (old.dataset ?? {}) || old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) {
    old.replaceWith(settled(fresh));
  } else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
  } else if (old.nodeType === Node.ELEMENT_NODE) {
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    morphChildren(old, fresh);
  }
}

function settled(node) {
  if (node.kept) return node.kept;
  node.querySelectorAll?.("[data-stub]").forEach((stub) => stub.replaceWith(stub.kept));
  return node;
}

const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") ?? "" : "");

// Texts for values -----------------------------------------------------------------------------------------------

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  // PostgreSQL's names of units of 1024, as the command line shows sizes.
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = Math.abs(value), unit = 0;
  while (size >= 1023.5 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${value < 0 ? "-" : ""}${unit === 0 || size >= 99.95 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0) value = 0;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86400)} days`;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(digits - 1) : String(+value.toPrecision(digits));
}

export function time(value) {
  if (!value) return "–";
  return el("time", { datetime: value }, new Date(value).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }));
}

export const milliseconds = (value) => (value === null || value === undefined ? "–" : `${number(value, 3)} ms`);

export const badge = (state, text = state) => el("span", { class: `badge ${state}` }, text);

export function facts(entries) {
  return el("dl", { class: "facts" }, entries.filter(([, value]) => value !== null && value !== undefined && value !== false)
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// In a narrow window the style sheet shows each row as a list, where each value needs its title; the roles keep it a
// table for screen readers. `heading` returns the content and the attributes of a column's head.
export function table(caption, columns, rows, heading = (column) => [column.title, {}]) {
  const kind = (column) => (column.number ? "number" : column.wide ? "wide" : null);
  const head = (column) => {
    const [text, attributes] = heading(column);
    return el("th", { scope: "col", role: "columnheader", class: kind(column), ...attributes }, text);
  };
  const cell = (column, row) => {
    const value = column.cell(row);
    const empty = value === null || value === "" || value === "–";
    return el("td", { role: "cell", class: kind(column), "data-title": column.title, "data-empty": empty }, value);
  };
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: "rows", role: "table" }, el("caption", {}, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, columns.map(head))),
      el("tbody", { role: "rowgroup" }, rows.map((row, place) => el("tr", { role: "row", "data-key": row.key ?? place },
        columns.map((column) => cell(column, row)))))));
}

// Colours that people with colour-blindness tell apart (Okabe and Ito 2008), by the job's number so that they stay.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a6fc0"];
const LIGHTER = ["#4aa8e8", "#e69f00", "#2fbf94", "#dd93bd", "#8fd0f5", "#f0803c", "#cdbf2e", "#a59be6"];
export const isDark = () => getComputedStyle(document.documentElement).getPropertyValue("--page").trim() === "#12161c";
export const colour = (job) => (isDark() ? LIGHTER : COLOURS)[job % COLOURS.length];

// Requests -------------------------------------------------------------------------------------------------------

const formToken = document.querySelector('meta[name="form-token"]')?.content ?? "";

export class Refusal extends Error {
  constructor(status, message, hint) { super(message); this.status = status; this.hint = hint; }
}

async function answer(response) {
  const body = await response.json().catch(() => ({ message: `the server answered with status ${response.status}` }));
  if (response.ok) return body;
  if (response.status === 401) location.assign("/login");
  throw new Refusal(response.status, body.message, body.hint);
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const part of [value].flat()) if (part !== null && part !== undefined && part !== "") query.append(name, part);
  }
  return answer(await fetch(query.size ? `${path}?${query}` : path, { headers: { accept: "application/json" } }));
}

export async function act(name, values) {
  try {
    const done = await answer(await fetch(`/api/act/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-form-token": formToken },
      body: JSON.stringify(values),
    }));
    say(done.message);
    return done.result ?? true;
  } catch (error) {
    say(sentence(error));
    return null;
  }
}

export const sentence = (error) => [error.message, error.hint].filter(Boolean).join(". ");

// A stream of answers. While the connection is lost, the page says so, and the browser tries again by itself.
export function watch(path, onData) {
  const source = new EventSource(path);
  source.addEventListener("data", (event) => { trouble(null); onData(JSON.parse(event.data)); });
  source.addEventListener("trouble", (event) => {
    trouble(sentence(JSON.parse(event.data)));
    content.querySelector(":scope > .waiting")?.remove();
  });
  source.addEventListener("ended", () => { source.close(); location.assign("/login"); });
  source.addEventListener("error", () => {
    trouble("The connection to this page's server is lost. The figures below are old. Trying again …");
    // A stream that was refused is not tried again by the browser: the session has ended, or the server is another.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => get("/api/listings/workers", { limit: 1 })
      .then(() => watch(path, onData), () => watch(path, onData)), 3000);
  });
  return source;
}

// Ask again every few seconds while the page is in sight.
export function repeat(work, everyMs) {
  const turn = async () => {
    if (!document.hidden) {
      try { await work(); trouble(null); } catch (error) {
        trouble(sentence(error));
        if (error.status === 404) show(content, el("p", { class: "quiet" }, "There is nothing to show."));
      }
    }
    setTimeout(turn, everyMs);
  };
  turn();
}

// Messages -------------------------------------------------------------------------------------------------------

export function trouble(text) {
  const place = document.getElementById("trouble");
  place.hidden = !text;
  if (place.textContent !== (text ?? "")) place.textContent = text ?? "";
}

export function say(text) {
  const note = el("p", {}, text);
  document.getElementById("said").append(note);
  setTimeout(() => note.remove(), 8000);
}

export function ask(question, yes) {
  const dialog = el("dialog", { "aria-label": question }, el("p", {}, question),
    el("form", { method: "dialog", class: "row" },
      el("button", { value: "yes", class: "danger" }, yes), el("button", { value: "no", autofocus: true }, "No, go back")));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(dialog.returnValue === "yes");
  }));
}

export const content = document.getElementById("content");

export function title(text) {
  document.getElementById("title").textContent = text;
  document.title = `${text} · tensile`;
}

// Buttons of the frame -------------------------------------------------------------------------------------------

const root = document.documentElement;
function stored() { try { return localStorage.getItem("theme"); } catch { return null; } }
if (stored()) root.dataset.theme = stored();
document.getElementById("theme")?.addEventListener("click", () => {
  const dark = getComputedStyle(root).getPropertyValue("--page").trim() === "#12161c";
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a private window keeps nothing */ }
  document.dispatchEvent(new Event("theme"));
});
document.getElementById("leave")?.addEventListener("click", async () => {
  await fetch("/logout", { method: "POST", headers: { "x-form-token": formToken } });
  location.assign("/login");
});
