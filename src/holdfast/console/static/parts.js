// Pieces of the page: elements, keyed lists, words for times and states, and a table that draws only the rows in sight.

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children. Text is always set as text: nothing from a host is ever markup. */
export function make(tag, given = {}, ...children) {
  const made = tag.includes(":") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make the children of `parent` those of `items`, by key: what is there stays, so that focus does. */
export function keyed(parent, items, key, create, update) {
  const names = items.map((item) => String(key(item))), wanted = new Set(names), known = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key)) known.set(child.dataset.key, child); else child.remove();
  }
  let at = parent.firstElementChild;
  items.forEach((item, number) => {
    let child = known.get(names[number]);
    if (!child) { child = create(item); child.dataset.key = names[number]; }
    if (child !== at) parent.insertBefore(child, at); else at = at.nextElementSibling;
    update?.(child, item);
  });
}

const GOOD = new Set(["STABLE", "RUNNING", "ENDED"]), WARN = new Set(["UP_FAILURE", "TENTATIVE"]);
const FIX = new Set(["STABILIZATION", "CORRECTING"]), BAD = new Set(["FAILED", "FAILURE", "UNREADABLE", "DOWN"]);

export const mood = (state) => (GOOD.has(state) ? "good" : WARN.has(state) ? "warn" : FIX.has(state) ? "fix" : BAD.has(state) ? "bad" : "");

export function stateOf(element, state) {
  say(element, state ?? "");
  const wanted = state ? `state ${mood(state)}` : "";
  if (element.className !== wanted) element.className = wanted;
}

export function seconds(ms) {
  if (ms === undefined || ms === null) return "";
  const s = ms / 1000;
  if (Math.abs(s) < 10) return `${s.toFixed(1)} s`;
  if (Math.abs(s) < 120) return `${Math.round(s)} s`;
  if (Math.abs(s) < 7200) return `${Math.round(s / 60)} min`;
  return Math.abs(s) < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
}

export const clock = (ms) => (ms === undefined ? "" : new Date(ms).toLocaleTimeString([], { hour12: false }));
export const number = (n) => (n === undefined || n === null ? "" : n.toLocaleString("en"));

/** Set the cells of a row of a table; a cell is text, {state}, or an element. */
export function cells(row, values) {
  values.forEach((value, at) => {
    const cell = row.cells[at] ?? row.appendChild(make(at === 0 ? "th" : "td", at === 0 ? { scope: "row" } : {}));
    if (value instanceof Element) { if (cell.firstElementChild !== value) cell.replaceChildren(value); }
    else if (value && typeof value === "object") stateOf(cell, value.state);
    else say(cell, value ?? "");
    if (typeof value === "string" && value.length > 40) cell.title = value;
  });
}

/** A table of any length: only rows in sight are in the document, so that a thousand cost what twenty do. */
export class VirtualTable {
  constructor(parent, label, columns, describe, choose) {
    this.describe = describe; this.choose = choose; this.items = []; this.height = 33;
    this.top = make("tr", { class: "space", "aria-hidden": true }, make("td", { colspan: columns.length }));
    this.bottom = make("tr", { class: "space", "aria-hidden": true }, make("td", { colspan: columns.length }));
    this.body = make("tbody");
    const head = make("tr", { "aria-rowindex": 1 }, ...columns.map((name) => make("th", { scope: "col" }, name)));
    this.table = make("table", { "aria-label": label }, make("thead", {}, head), make("tbody", {}, this.top), this.body, make("tbody", {}, this.bottom));
    this.frame = make("div", { class: "virtual", tabindex: 0, role: "region", "aria-label": label }, this.table);
    this.frame.addEventListener("scroll", () => this.draw(), { passive: true });
    parent.append(this.frame);
  }

  show(items) {
    this.items = items;
    this.table.setAttribute("aria-rowcount", items.length + 1);
    this.draw();
  }

  draw() {
    const sample = this.body.firstElementChild;
    if (sample?.offsetHeight) this.height = sample.offsetHeight;
    const first = Math.max(0, Math.floor(this.frame.scrollTop / this.height) - 5);
    const last = Math.min(this.items.length, first + Math.ceil((this.frame.clientHeight || 400) / this.height) + 10);
    const shown = this.items.slice(first, last).map((item, at) => [item, first + at]);
    this.top.firstElementChild.style.height = `${first * this.height}px`;
    this.bottom.firstElementChild.style.height = `${(this.items.length - last) * this.height}px`;
    keyed(this.body, shown, ([item]) => item.key, () => make("tr"), (row, [item, at]) => {
      row.setAttribute("aria-rowindex", at + 2);
      const [name, ...rest] = this.describe(item);
      const link = row.querySelector("a") ?? make("a");
      if (this.choose(item)) { say(link, name); link.href = this.choose(item); cells(row, [link, ...rest]); }
      else cells(row, [name, ...rest]);
    });
  }
}
