// Streams and nodes from left to right, with the state of each replica: for applications that fit on a page.

import { make, mood } from "./parts.js";

export const NODES_MAX = 40, STREAMS_MAX = 80; // More cannot be read; the tables have them all.
const COLUMN = 190, GAP = 46, WIDE = 150, STREAM = 34, HEAD = 24, LINE = 18;

export function drawable(doc) {
  return Object.keys(doc.nodes).length <= NODES_MAX && Object.keys(doc.streams).length <= STREAMS_MAX;
}

const short = (text, max = 20) => (text.length > max ? `${text.slice(0, max - 1)}…` : text);

function columns(doc) {
  const depth = {};
  const of = (stream) => {
    if (depth[stream] !== undefined) return depth[stream];
    const producer = doc.streams[stream]?.producer;
    depth[stream] = producer ? Math.max(...doc.nodes[producer].inputs.map(of)) + 2 : 0;
    return depth[stream];
  };
  const placed = [];
  const put = (column, item) => { (placed[column] ??= []).push(item); };
  for (const name of Object.keys(doc.streams)) put(of(name), { kind: "stream", name, height: STREAM });
  for (const [name, node] of Object.entries(doc.nodes)) put(of(node.output) - 1, { kind: "node", name, node, height: HEAD + LINE * node.replicas.length + 8 });
  return placed.map((column) => column ?? []);
}

/** Draws anew; called when the picture would differ, which `said` tells. */
export function draw(parent, doc, chosen) {
  const placed = columns(doc), at = {};
  const tall = Math.max(...placed.map((column) => column.reduce((sum, item) => sum + item.height + 16, 0)), 60);
  placed.forEach((column, number) => {
    const free = tall - column.reduce((sum, item) => sum + item.height, 0), gap = free / (column.length + 1);
    let y = gap;
    for (const item of column) { Object.assign(item, { x: number * COLUMN + 8, y }); at[`${item.kind} ${item.name}`] = item; y += item.height + gap; }
  });
  const width = (placed.length - 1) * COLUMN + WIDE + 16;
  const svg = make("svg:svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}` });
  for (const [name, node] of Object.entries(doc.nodes)) {
    const box = at[`node ${name}`];
    for (const stream of node.inputs) svg.append(edge(at[`stream ${stream}`], box, missing(doc, name, stream)));
    svg.append(edge(box, at[`stream ${node.output}`], false));
  }
  for (const item of Object.values(at)) svg.append(item.kind === "stream" ? streamBox(item, doc, chosen) : nodeBox(item, doc));
  parent.replaceChildren(svg);
}

function missing(doc, node, stream) {
  return doc.nodes[node].replicas.some((name) => doc.replicas[name]?.inputs?.[stream]?.failing);
}

function edge(from, to, broken) {
  const x1 = from.x + WIDE, y1 = from.y + from.height / 2, x2 = to.x, y2 = to.y + to.height / 2, bend = Math.max(GAP / 2, (x2 - x1) / 2);
  return make("svg:path", { class: `edge${broken ? " missing" : ""}`, d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
}

function streamBox({ name, x, y, height }, doc, chosen) {
  const state = doc.live[name]?.state ?? "";
  const link = make("svg:a", { href: `#stream=${encodeURIComponent(name)}`, class: `stream ${mood(state)}${name === chosen ? " chosen" : ""}` });
  link.append(
    make("svg:title", {}, `${name} ${state}`),
    make("svg:rect", { x, y, width: WIDE, height, rx: height / 2 }),
    make("svg:text", { x: x + WIDE / 2, y: y + 15, "text-anchor": "middle" }, short(name)),
    make("svg:text", { x: x + WIDE / 2, y: y + 28, "text-anchor": "middle", class: "small" }, state.toLowerCase() || "elsewhere"),
  );
  return link;
}

function nodeBox({ name, node, x, y, height }, doc) {
  const box = make("svg:g", { role: "img", "aria-label": `node ${name}: ${node.replicas.map((r) => `${r} ${doc.replicas[r]?.state ?? "elsewhere"}`).join(", ")}` });
  box.append(
    make("svg:rect", { class: "node", x, y, width: WIDE, height, rx: 4 }),
    make("svg:text", { x: x + 8, y: y + 17 }, short(name)),
  );
  node.replicas.forEach((replica, number) => {
    const state = doc.replicas[replica]?.state ?? "", line = y + HEAD + LINE * number + 11;
    box.append(
      make("svg:circle", { class: `dot ${mood(state)}`, cx: x + 13, cy: line - 4, r: 5 }),
      make("svg:text", { x: x + 23, y: line, class: "small" }, short(`${replica.slice(replica.lastIndexOf("@") + 1)} ${state || "elsewhere"}`, 22)),
    );
  });
  return box;
}

/** What the drawing depends on, as text: it is drawn anew when this changes. */
export function said(doc, chosen) {
  const states = Object.entries(doc.replicas).map(([name, r]) => [name, r.state, Object.entries(r.inputs ?? {}).filter(([, i]) => i.failing).map(([s]) => s)]);
  return JSON.stringify([chosen, Object.keys(doc.nodes).length, states, Object.entries(doc.live).map(([name, s]) => [name, s.state])]);
}
