// The picture of a stream: stable, tentative, UNDO and REC_DONE over the time of arrival, and how late new tuples came.

import { $, clock, say, seconds } from "./parts.js";

const STABLE = 1, TENTATIVE = 2, UNDO = 4, REC_DONE = 5;
const POINTS_MAX = 4096; // What the host keeps; a page that stays open for a day holds no more.
const WALL = 0, KIND = 1, STIME = 2, TUPLES = 3, LATENCY = 4, BUCKETS = 5;
const PARTS = 3; // A bucket that lacks less than half a third of what is usual may well be whole.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function chart(parent, height, format, draw) {
  const axis = (more) => ({ stroke: () => colour("quiet"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { stroke: () => colour("line") }, font: "12px system-ui", ...more });
  const options = {
    width: Math.max(280, parent.clientWidth), height, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: true, auto: false }, y: { auto: false } },
    series: [{}, { paths: () => null, points: { show: false } }],
    axes: [
      axis({ values: (_, ticks) => ticks.map((at) => clock(at * 1000)), space: 90 }),
      axis({ values: (_, ticks) => ticks.map(format), size: 74 }),
    ],
    hooks: { draw: [draw] },
  };
  const made = new uPlot(options, [[0], [0]], parent);
  new ResizeObserver(() => {
    const width = Math.max(280, parent.clientWidth);
    if (Math.abs(width - made.width) > 1) made.setSize({ width, height });
  }).observe(parent);
  return made;
}

export class Picture {
  constructor() {
    this.points = []; this.bucket = 1; this.holes = []; this.bound = null; this.from = 0; this.to = 1; this.waiting = false;
    this.arrivals = chart($("arrivals"), 260, (at) => clock(at * 1000), (u) => this.drawArrivals(u));
    this.latency = chart($("latency"), 170, (at) => `${+at.toFixed(2)} s`, (u) => this.drawLatency(u));
  }

  /** `bucket` is the stream's, in milliseconds. */
  set(points, bucket) { this.points = points.slice(-POINTS_MAX); this.bucket = bucket || 1; }

  add(points) {
    this.points.push(...points);
    if (this.points.length > POINTS_MAX * 1.25) this.points = this.points.slice(-POINTS_MAX);
  }

  /** Draw soon, once for everything that comes until then. `delay` is X in milliseconds, or nothing. */
  show(name, delay, from, to) {
    this.name = name; this.delay = delay; this.from = from; this.to = to;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  seen() { return this.points.filter((p) => p[WALL] >= this.from && p[WALL] <= this.to); }

  /** What is usual: nearly all that came stable and new, in this picture. Of what came at once the newest counts: the rest
      had gathered, before the node began or while an input was away. */
  usual(points) {
    const newest = new Map();
    for (const p of points) {
      if (p[KIND] === STABLE && p[LATENCY] !== null) newest.set(p[WALL], Math.min(p[LATENCY], newest.get(p[WALL]) ?? Infinity));
    }
    const late = [...newest.values()].sort((a, b) => a - b);
    return late.length ? late[Math.floor(late.length * 0.95)] : 0;
  }

  /** Where tentative buckets lack tuples, as [wall, stime, tuples]. How many there are in the end is known once a bucket is
      corrected; before, it is taken to be what a stable one usually has, and nothing is missed in the newest, which grows. */
  missing() {
    const at = (p) => Math.floor(p[STIME] / this.bucket), end = new Map(), shared = [], eras = [[]];
    for (const p of this.points) {
      if (p[KIND] === UNDO) eras.push([]);
      if (p[STIME] === null) continue;
      if ((p[BUCKETS] ?? 1) > 1) { shared.push([at(p), at(p) + p[BUCKETS]]); continue; } // Which bucket has how many is not known.
      if (p[KIND] === TENTATIVE) eras[eras.length - 1].push(p); else end.set(at(p), (end.get(at(p)) ?? 0) + p[TUPLES]);
    }
    const counts = [...end.values()].sort((a, b) => a - b), usual = counts.length ? counts[Math.floor(counts.length / 2)] : 0;
    return eras.filter((era) => era.length).flatMap((era) => this.lacking(era, at, end, usual))
      .filter(([, stime]) => !shared.some(([from, to]) => from * this.bucket <= stime && stime < to * this.bucket));
  }

  /** The same of the tentative tuples between two UNDOs. */
  lacking(era, at, end, usual) {
    const came = new Map();
    for (const p of era) came.set(at(p), { wall: p[WALL], tuples: (came.get(at(p))?.tuples ?? 0) + p[TUPLES] });
    const first = Math.min(...came.keys()), last = Math.max(...came.keys()), found = [];
    let wall = came.get(last).wall;
    for (const b of [...new Set([...came.keys(), ...[...end.keys()].filter((b) => b > first && b < last)])].sort((x, y) => y - x)) {
      wall = came.get(b)?.wall ?? wall; // Of a bucket that nothing came of: when the next one came.
      const tuples = came.get(b)?.tuples ?? 0, known = end.get(b), expected = known ?? (b === last ? tuples : usual);
      const lacks = known === undefined ? Math.round((tuples * PARTS) / (expected || 1)) < PARTS && tuples < expected : tuples < expected;
      if (lacks) found.push([wall, b * this.bucket, expected - tuples]);
    }
    return found;
  }

  draw() {
    this.holes = this.missing().filter(([wall]) => wall >= this.from && wall <= this.to);
    const points = this.seen(), data = points.filter((p) => p[STIME] !== null);
    this.bound = this.delay ? this.delay + this.usual(points) : null;
    const stimes = data.map((p) => p[STIME]);
    const low = stimes.length ? Math.min(...stimes) : this.from, high = stimes.length ? Math.max(...stimes) : this.to;
    const x = { min: this.from / 1000, max: this.to / 1000 }, room = Math.max(1000, (high - low) * 0.05);
    const top = Math.max(1000, this.bound ? this.bound * 1.25 : 0, ...data.map((p) => (p[LATENCY] ?? 0) * 1.1));
    for (const [u, min, max] of [[this.arrivals, (low - room) / 1000, (high + room) / 1000], [this.latency, 0, top / 1000]]) {
      u.batch(() => { u.setScale("x", x); u.setScale("y", { min, max }); });
    }
    this.tell(points, data);
  }

  tell(points, data) {
    const count = (kind) => data.filter((p) => p[KIND] === kind).reduce((sum, p) => sum + p[TUPLES], 0);
    const controls = points.filter((p) => p[STIME] === null).map((p) => `${p[KIND] === UNDO ? "UNDO" : "REC_DONE"} at ${clock(p[WALL])}`);
    const lacking = this.holes.length ? `; ${this.holes.length} tentative buckets with missing tuples` : "";
    const worst = Math.max(0, ...data.map((p) => p[LATENCY] ?? 0));
    const told = `${this.name}, ${clock(this.from)} to ${clock(this.to)}: ${count(STABLE)} stable and ${count(TENTATIVE)} tentative tuples${lacking}` +
      `${controls.length ? `; ${controls.slice(-6).join(", ")}` : ""}. The latest new tuple was ${seconds(worst)} late` +
      `${this.bound ? `; usual latency plus X is ${seconds(this.bound)}` : ""}.`;
    $("arrivals").setAttribute("aria-label", told);
    $("latency").setAttribute("aria-label", told);
  }

  marks(u, place) {
    const c = u.ctx, dots = devicePixelRatio || 1;
    c.save();
    c.beginPath(); c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height); c.clip();
    c.textAlign = "left"; c.textBaseline = "alphabetic";
    const stable = colour("stable"), yellow = colour("tentative-fill"), edge = colour("tentative"), control = colour("control");
    const ends = []; // Where the labels of each line end: those of controls that come together stand below each other.
    for (const p of this.seen()) {
      const x = u.valToPos(p[WALL] / 1000, "x", true);
      if (p[STIME] === null) {
        c.strokeStyle = c.fillStyle = control; c.lineWidth = dots;
        c.beginPath(); c.moveTo(x, u.bbox.top); c.lineTo(x, u.bbox.top + u.bbox.height); c.stroke();
        c.beginPath(); c.moveTo(x, u.bbox.top + 14 * dots); c.lineTo(x + 5 * dots, u.bbox.top + 19 * dots); c.lineTo(x, u.bbox.top + 24 * dots); c.lineTo(x - 5 * dots, u.bbox.top + 19 * dots); c.fill();
        c.font = `${11 * dots}px system-ui`;
        const text = p[KIND] === UNDO ? "UNDO" : "REC_DONE", wide = c.measureText(text).width, right = u.bbox.left + u.bbox.width;
        const left = x + 4 * dots + wide > right ? x - 4 * dots - wide : x + 4 * dots;
        let line = ends.findIndex((end) => end < left);
        if (line < 0) line = ends.length < 5 ? ends.length : 0;
        ends[line] = left + wide;
        c.fillText(text, left, u.bbox.top + (34 + 13 * line) * dots);
        continue;
      }
      const value = place(p);
      if (value === null) continue;
      const y = u.valToPos(value / 1000, "y", true), half = 3 * dots;
      if (p[KIND] === TENTATIVE) {
        c.fillStyle = yellow; c.strokeStyle = edge; c.lineWidth = dots;
        c.beginPath(); c.arc(x, y, half, 0, 7); c.fill(); c.stroke();
      } else { c.fillStyle = stable; c.fillRect(x - half, y - half, 2 * half, 2 * half); }
    }
    c.restore();
  }

  drawArrivals(u) {
    this.marks(u, (p) => p[STIME]);
    const c = u.ctx, dots = devicePixelRatio || 1, half = 5 * dots;
    c.save();
    c.strokeStyle = colour("hole"); c.lineWidth = 1.5 * dots;
    for (const [wall, stime] of this.holes) c.strokeRect(u.valToPos(wall / 1000, "x", true) - half, u.valToPos(stime / 1000, "y", true) - half, 2 * half, 2 * half);
    c.restore();
  }

  drawLatency(u) {
    this.marks(u, (p) => p[LATENCY]);
    if (!this.bound) return;
    const c = u.ctx, dots = devicePixelRatio || 1, y = u.valToPos(this.bound / 1000, "y", true);
    c.save();
    c.strokeStyle = c.fillStyle = colour("bound"); c.lineWidth = 1.5 * dots; c.setLineDash([6 * dots, 4 * dots]);
    c.beginPath(); c.moveTo(u.bbox.left, y); c.lineTo(u.bbox.left + u.bbox.width, y); c.stroke();
    c.font = `${12 * dots}px system-ui`; c.textAlign = "left"; c.textBaseline = "alphabetic";
    c.fillText(`usual + X = ${seconds(this.bound)} (X = ${seconds(this.delay)})`, u.bbox.left + 6 * dots, y - 5 * dots);
    c.restore();
  }
}
