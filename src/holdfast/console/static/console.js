// The page: who looks, what the host says, and what is shown of it.

import * as diagram from "./diagram.js";
import { Refused, ask, follow, merge, order } from "./events.js";
import { $, VirtualTable, cells, clock, keyed, make, mood, number, say, seconds, stateOf } from "./parts.js";
import { Picture } from "./picture.js";

const KEY = "holdfast.token", EVENTS_MAX = 500;
const SPOKEN = new Set(["failure", "correction", "stable", "cut", "heal", "movement"]);

let token = sessionStorage.getItem(KEY) ?? "", doc = null, you = null, events = [], chosen = null, episode = null, moment = null;
let listening = null, watching = null, picture = null, drawn = "", shownLog = "";

// Who looks -----------------------------------------------------------------------------------------------------------

function enter() {
  $("enter").hidden = true; $("leave").hidden = false; say($("refused"), "");
  listening?.abort();
  listening = new AbortController();
  say($("connection"), "connecting …");
  follow("/v1/console/events", token, {
    you: (said) => { you = said; say($("who"), said.role === "operator" ? `${said.name}, may act` : `${said.name}, may look`); },
    whole: (said) => { events = said.events ?? []; delete said.events; doc = merge({}, said); sessionStorage.setItem(KEY, token); came(true); },
    patch: (said) => { remember(said.happened ?? []); delete said.happened; merge(doc, said); came(false); },
    broken: (error) => {
      if (error instanceof Refused && [401, 403].includes(error.status)) leave(error.message);
      else say($("connection"), `not connected${error ? `: ${error.message}` : ""}; trying again …`);
    },
  }, listening.signal);
}

function leave(why = "") {
  listening?.abort(); watching?.abort();
  sessionStorage.removeItem(KEY);
  token = ""; doc = you = chosen = null; events = [];
  $("shown").hidden = true; $("enter").hidden = false; $("leave").hidden = true;
  say($("connection"), "not connected"); say($("who"), ""); say($("refused"), why);
  $("token").focus();
}

$("enter").addEventListener("submit", (event) => { event.preventDefault(); token = $("token").value.trim(); $("token").value = ""; if (token) enter(); });
$("leave").addEventListener("click", () => leave());

// What came ------------------------------------------------------------------------------------------------------------

function remember(happened) {
  const last = events.length ? events[events.length - 1].id : 0, fresh = happened.filter((event) => event.id > last);
  if (!fresh.length) return;
  events.push(...fresh);
  events = events.slice(-EVENTS_MAX);
  const told = fresh.filter((event) => SPOKEN.has(event.kind)).slice(-3).map((event) => event.text);
  if (told.length) say($("spoken"), told.join(". "));
}

function came(whole) {
  if (!doc) return;
  say($("title"), `${doc.app} on ${doc.host}`);
  document.title = `${doc.app} · Holdfast`;
  say($("connection"), `live, ${clock(doc.at_ms)}`);
  if ($("shown").hidden) $("shown").hidden = false;
  picture ??= new Picture();
  if (whole) { choices(); route(); }
  appeared();
  showNow(); showDiagram(); showReplicas(); showStreams(); showStream(); showLog(); showHosts(); showOutside(); showStores(); showLoad();
}

// Now -------------------------------------------------------------------------------------------------------------------

function showNow() {
  const states = {};
  for (const replica of Object.values(doc.replicas)) states[replica.state] = (states[replica.state] ?? 0) + 1;
  const standing = Object.values(doc.live).reduce((sum, stream) => sum + (stream.standing ?? 0), 0);
  const unwatched = Object.values(doc.live).filter((stream) => stream.state === "NOT WATCHED").length;
  const where = unwatched ? ` (of the streams that are watched; ${number(unwatched)} are not)` : "";
  const counts = [...Object.entries(states).sort(), [`tentative tuples that stand${where}`, standing], ["cut on purpose", doc.cuts.length]];
  keyed($("counts"), counts, ([name]) => name, ([name]) => make("li", {}, make("b"), " ", make("span")), (item, [name, count]) => {
    say(item.children[0], number(count));
    if (mood(name)) stateOf(item.children[1], name); else say(item.children[1], name);
  });
  keyed($("down"), Object.entries(doc.down ?? {}), ([host]) => host, () => make("p"), (line, [host, why]) => say(line, `Host ${host} does not answer: ${why}`));
  keyed($("cuts"), doc.cuts, (cut) => cut, (cut) => make("p", { class: "row" }, make("span", {}, `${cut} is cut on purpose.`), act("Heal", `Heal ${cut}?`, () => order("/v1/faults", token, { heal: [cut] }))), (line) => { line.lastElementChild.hidden = !may(); });
}

// What may be done ------------------------------------------------------------------------------------------------------

const may = () => you?.role === "operator";

function act(label, question, done) {
  return make("button", { type: "button", on: { click: () => ask_first(question, done) } }, label);
}

function ask_first(question, done) {
  say($("sure-text"), question); say($("sure-refused"), "");
  $("sure-yes").onclick = async () => {
    $("sure-yes").disabled = true; // Draining waits for readers to go.
    try { await done(); $("sure").close(); } catch (error) { say($("sure-refused"), error.message); } finally { $("sure-yes").disabled = false; }
  };
  $("sure").showModal();
}
$("sure-no").addEventListener("click", () => $("sure").close());

// Diagram and tables ----------------------------------------------------------------------------------------------------

function showDiagram() {
  const fits = diagram.drawable(doc);
  $("diagram").hidden = !fits; $("no-diagram").hidden = fits;
  const now = fits ? diagram.said(doc, chosen) : "";
  if (!fits || now === drawn) return;
  const focused = document.activeElement?.closest?.("#diagram a")?.getAttribute("href");
  diagram.draw($("diagram"), doc, chosen);
  drawn = now;
  if (focused) [...$("diagram").querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

const lag = (ms) => (ms === undefined ? "" : `${seconds(Math.max(0, doc.at_ms - ms))} ago`);
const link = (stream) => `#stream=${encodeURIComponent(stream)}`;

const replicas = new VirtualTable($("replicas"), "Replicas", ["replica", "state", "for", "stable until", "output", "fork", "reads", "why"],
  ({ key, replica }) => [key, { state: replica.state }, seconds(doc.at_ms - replica.since_ms), lag(replica.stable_until_ms),
    replica.output ? `${replica.output.stream} ${replica.output.state}` : "", forkText(replica.fork), reads(replica), replica.why ?? ""],
  ({ replica }) => { const stream = replica.output?.stream ?? doc.nodes[replica.node]?.output; return stream ? link(stream) : null; });

const forkText = (fork) => (fork && fork.state !== "none" ? `${fork.id} ${fork.state}` : "");
const reads = (replica) => Object.entries(replica.inputs ?? {}).map(([stream, input]) => `${stream} from ${(input.reading ?? []).join(" and ") || "nobody"}${input.failing ? " (missing)" : ""}`).join(", ");

function sought(id, text) {
  const words = $(id).value.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => text.toLowerCase().includes(word));
}

const URGENT = { bad: 0, warn: 1, fix: 2, "": 3, good: 4 };

function showReplicas() {
  const all = Object.entries(doc.replicas).map(([key, replica]) => ({ key, replica }));
  for (const [name, node] of Object.entries(doc.nodes)) {
    for (const key of node.replicas) if (!doc.replicas[key]) all.push({ key, replica: { node: name, state: "elsewhere", since_ms: doc.at_ms } });
  }
  const found = all.filter(({ key, replica }) => sought("find-replica", `${key} ${replica.state} ${replica.output?.stream ?? ""} ${Object.keys(replica.inputs ?? {}).join(" ")}`));
  found.sort((a, b) => URGENT[mood(a.replica.state)] - URGENT[mood(b.replica.state)] || (a.key < b.key ? -1 : 1));
  say($("replicas-shown"), `${number(found.length)} of ${number(all.length)}`);
  replicas.show(found);
}

const streams = new VirtualTable($("streams"), "Streams", ["stream", "state", "boundary", "latency", "stable", "tentative", "standing", "made by", "read by"],
  ({ key, stream, live }) => [key, { state: live.state ?? "elsewhere" }, live.ended ? "ended" : lag(live.boundary_ms), seconds(live.latency_ms),
    number(live.stable), number(live.tentative), number(live.standing), stream.producer ?? `source on ${stream.home}`, stream.readers.join(", ")],
  ({ key }) => link(key));


function showStreams() {
  streams.show(Object.entries(doc.streams).map(([key, stream]) => ({ key, stream, live: doc.live[key] ?? {} }))
    .filter(({ key, stream, live }) => sought("find-stream", `${key} ${live.state ?? "elsewhere"} ${stream.producer ?? ""} ${stream.readers.join(" ")}`)));
}

for (const [id, show] of [["find-replica", showReplicas], ["find-stream", showStreams]]) $(id).addEventListener("input", () => doc && show());

// The picture of one stream ---------------------------------------------------------------------------------------------

function choices() {
  const names = Object.keys(doc.streams);
  keyed($("choose"), names, (name) => name, (name) => make("option", { value: name }, name));
  if (!chosen) chosen = result() ?? names[0];
}

/** The stream to look at if nobody has said which: the first result of a node. */
const result = () => Object.keys(doc.streams).find((name) => doc.streams[name].producer && doc.live[name]);

function route() {
  const said = new URLSearchParams(location.hash.startsWith("#stream=") ? location.hash.slice(1) : "");
  const stream = said.get("stream"), part = said.get("episode"), at = said.get("at");
  if (stream && doc?.streams[stream]) watch(stream, part ? Number(part) : null, at ? Number(at) : null);
  else if (doc && !watching) watch(chosen, null);
}

/** A stream that is made while the page is open has a picture from then on; the first result of a node takes the place of an input. */
function appeared() {
  const better = location.hash.startsWith("#stream=") || doc.streams[chosen]?.producer ? null : result();
  if (better) watch(better, null);
  else if (!watching && chosen && doc.live[chosen]) watch(chosen, null);
}
addEventListener("hashchange", () => { if (doc && location.hash.startsWith("#stream=")) { route(); showStream(); showDiagram(); $("h-stream").scrollIntoView({ block: "start" }); } });
$("choose").addEventListener("change", () => { location.hash = link($("choose").value); });
$("live").addEventListener("click", () => { location.hash = link(chosen); });
$("span").addEventListener("change", () => doc && showStream());

/** Follow a stream, or look at a failure of its past (`part`), or at what came about `at`. */
async function watch(stream, part, at = null) {
  if (watching && !watching.signal.aborted && stream === chosen && part === episode && at === moment && watching.stream === stream) return;
  watching?.abort();
  watching = new AbortController();
  watching.stream = stream;
  chosen = stream; episode = part; moment = at;
  picture.set([]);
  $("choose").value = stream; $("live").hidden = part === null && at === null;
  say($("stream-name"), stream); say($("stream-says"), "");
  if (part !== null) {
    try { picture.past = await (await ask(`/v1/console/streams/${encodeURIComponent(stream)}/episodes/${part}`, token)).json(); picture.set(picture.past.points, picture.past.bucket_ms); }
    catch (error) { say($("stream-says"), error.message); }
    showStream();
    return;
  }
  picture.past = null;
  if (!doc.live[stream]) {
    say($("stream-says"), "This host has no such stream (yet); one that produces it has its picture.");
    watching = null;
    return;
  }
  follow(`/v1/console/streams/${encodeURIComponent(stream)}/events`, token, {
    picture: (said) => { picture.set(said.points, said.bucket_ms); counted(stream, said); },
    points: (said) => { picture.add(said.points); counted(stream, said); },
    broken: (error) => { if (error instanceof Refused) say($("stream-says"), error.message); },
  }, watching.signal);
}

/** The numbers of the picture come more often than those of the page. */
function counted(stream, { points, stream: _, bucket_ms, ...facts }) {
  if (!doc || chosen !== stream) return;
  doc.live[stream] = { ...doc.live[stream], ...facts };
  showStream();
}

function showStream() {
  if (!doc || !chosen || !doc.streams[chosen]) return;
  const stream = doc.streams[chosen], node = doc.nodes[stream.producer], live = doc.live[chosen] ?? {};
  const past = picture.past, wall = Date.now();
  if (past) {
    const times = past.points.map((p) => p[0]);
    picture.show(chosen, node?.max_delay_ms, Math.min(...times, past.began_ms), Math.max(...times, past.began_ms + 1000));
    say($("stream-says"), `The failure that began at ${clock(past.began_ms)}${past.done_ms ? `, corrected at ${clock(past.done_ms)}` : ", not corrected yet"}.`);
  } else if (moment !== null) {
    picture.show(chosen, node?.max_delay_ms, moment - AROUND_MS, moment + AROUND_MS);
    const kept = picture.points.length && picture.points[0][0] < moment;
    say($("stream-says"), `About ${clock(moment)}; nothing was tentative then.${kept ? "" : " What came then is not kept any more."}`);
  } else {
    const now = Math.max(doc.at_ms, picture.points.length ? picture.points[picture.points.length - 1][0] : 0);
    picture.show(chosen, node?.max_delay_ms, now - Number($("span").value) * 1000, now);
    if (live.why) say($("stream-says"), live.why);
  }
  const numbers = [["state", { state: live.state ?? "elsewhere" }], ["counted from", live.from_ms ? new Date(live.from_ms).toLocaleString([], { hour12: false }) : live.state ? "its beginning" : ""], ["stable tuples", number(live.stable)], ["tentative tuples", number(live.tentative)],
    ["tentative that stand", number(live.standing)], ["UNDO", number(live.undos)], ["REC_DONE", number(live.rec_dones)],
    ["latency of the newest", seconds(live.latency_ms)], ["boundary", live.ended ? "ended" : lag(live.boundary_ms)]];
  facts($("numbers"), numbers);
  const promise = node ? [["node", stream.producer], ["X (max_delay)", seconds(node.max_delay_ms)], ["during a failure", node.during_failure],
    ["during corrections", node.during_stabilisation], ["corrects by", node.stabilise], ["blocking inputs", node.blocking.join(", ") || "none"],
    ["replicas", node.replicas.join(", ")], ["forks", node.replicas.map((r) => forkText(doc.replicas[r]?.fork)).filter(Boolean).join(", ") || "none"]]
    : [["source on", stream.home]];
  facts($("promise"), [...promise, ["read by", stream.readers.join(", ") || "clients"]]);
  showInputs(stream, node);
  showOperators(node);
  showSaves(node);
  showReaders();
}

/** A number of seconds as it comes in what a replica says of its checkpoints. */
const took = (s) => (s === undefined || s === null ? "" : s < 1 ? `${Math.round(s * 1000)} ms` : seconds(s * 1000));

function showSaves(node) {
  const rows = (node?.replicas ?? []).flatMap((name) => (doc.replicas[name]?.saves ?? []).map((saved) => ({ name, saved })));
  $("has-saves").hidden = !rows.length;
  keyed($("saves").tBodies[0], rows, ({ name, saved }) => `${name} ${saved.operator}`, () => make("tr"), (row, { name, saved: s }) =>
    cells(row, [name, s.operator, number(s.durable), number(s.waiting), number(s.dropped), number(s.bytes), number(s.met), number(s.missed), s.missed ? took(s.late_s) : "", took(s.last_restore_s)]));
}

function showOperators(node) {
  const known = (node?.replicas ?? []).filter((name) => doc.replicas[name]?.operators?.length);
  $("has-operators").hidden = !known.length;
  if (!known.length) return;
  keyed($("operators").tBodies[0], doc.replicas[known[0]].operators, (o) => o.name, () => make("tr"), (row, o) =>
    cells(row, [o.name, o.kind, o.keeps, o.policy, o.saves, o.store ?? ""]));
  keyed($("versions").tBodies[0], known, (name) => name, () => make("tr"), (row, name) => {
    const { batch, recovery } = doc.replicas[name];
    cells(row, [name, batch === undefined || batch < 0 ? "" : number(batch), number(recovery?.windows), took(recovery?.extent_s), took(recovery?.recovery_estimate_s),
      took(recovery?.recover_within_s), took(recovery?.last_recovery_s)]);
  });
}

/** Under this name a host notes what the nodes that read a stream have acknowledged; it is theirs alone. */
const REPLICAS = "replicas";

function showReaders() {
  const stream = chosen, found = Object.entries(doc.readers?.[stream] ?? {}), upto = doc.live[stream]?.boundary_ms;
  $("has-readers").hidden = !found.length;
  keyed($("readers").tBodies[0], found, ([name]) => `${stream} ${name}`, () => make("tr"), (row, [name, until]) => {
    const known = row.cells[2]?.firstElementChild, behind = upto !== undefined && until < upto;
    let button = "";
    if (may() && name !== REPLICAS && behind) {
      button = known ?? act("Acknowledge", `Acknowledge ${stream} for ${name}, up to now? For a reader that is gone: it will never get what lies before, and what all readers have acknowledged may be removed. This cannot be taken back.`,
        () => order(`/v1/streams/${encodeURIComponent(stream)}/acks`, token, { reader: name, until_us: doc.live[stream].boundary_ms * 1000 }));
      button.setAttribute("aria-label", `Acknowledge ${stream} for ${name}`);
    }
    cells(row, [name === REPLICAS ? "the nodes that read it" : name, until ? lag(until) : "nothing", button || (may() ? "" : "for operators")]);
  });
}

function facts(table, rows) {
  keyed(table.tBodies[0], rows, ([name]) => name, ([name]) => make("tr", {}, make("th", { scope: "row" }, name), make("td")), (row, [, value]) => {
    if (value && typeof value === "object") stateOf(row.cells[1], value.state); else { row.cells[1].className = ""; say(row.cells[1], value ?? ""); }
  });
}

function showInputs(stream, node) {
  const makers = node ? [node] : stream.readers.map((name) => doc.nodes[name]);
  const rows = makers.flatMap((maker) => maker.replicas.filter((name) => doc.replicas[name]).flatMap((name) =>
    Object.entries(doc.replicas[name].inputs ?? {}).filter(([input]) => node || input === chosen).map(([input, facts]) => ({ name, input, facts }))));
  keyed($("inputs").tBodies[0], rows, ({ name, input }) => `${name} ${input}`, () => make("tr"), (row, { name, input, facts: said }) => {
    const cut = `${input}>${name.slice(name.lastIndexOf("@") + 1)}`, severed = doc.cuts.includes(cut);
    const known = row.cells[5]?.firstElementChild, wanted = may() ? (severed ? "Heal" : "Cut") : "";
    let button = "";
    if (wanted) {
      button = known?.textContent === wanted ? known : act(wanted, severed ? `Let ${input} through to ${name} again?` : `Cut ${input} off from ${name}? Its readers get tentative results once X has passed.`,
        () => order("/v1/faults", token, severed ? { heal: [cut] } : { cut: [cut] }));
      button.setAttribute("aria-label", `${wanted} ${cut}`);
    }
    cells(row, [name, input, (said.reading ?? []).join(", ") || "nobody", lag(said.boundary_ms), { state: said.failing ? "FAILURE" : "STABLE" }, button || "for operators"]);
  });
}

// Log -------------------------------------------------------------------------------------------------------------------

/** Shown before and after something that was no failure, such as a movement. */
const AROUND_MS = 20_000;

/** To the failure that it belongs to as it looked, and where there was none to what came at that time. */
function pictured(event) {
  const spans = doc.live[event.stream]?.episodes ?? [];
  const within = spans.find(([, from, to]) => event.at_ms >= from && (to === null || event.at_ms <= to));
  const part = event.episode ?? within?.[0];
  return `${link(event.stream)}${part ? `&episode=${part}` : `&at=${event.at_ms}`}`;
}

const KINDS = { failure: "bad", fork: "warn", correction: "fix", stable: "good", cut: "bad", heal: "good" };

function showLog() {
  const kinds = [...new Set(events.map((event) => event.kind))].sort();
  keyed($("kinds"), ["", ...kinds], (kind) => kind || "all", (kind) => make("option", { value: kind }, kind || "everything"));
  const wanted = $("kinds").value, shown = events.filter((event) => !wanted || event.kind === wanted).reverse();
  const known = Object.values(doc.live).reduce((sum, live) => sum + (live.episodes ?? []).reduce((all, [n, , to]) => all + n + (to ?? 0), 0), 0);
  const now = `${wanted} ${shown.length} ${shown[0]?.id} ${known}`;
  if (now === shownLog) return;
  shownLog = now;
  $("nothing").hidden = shown.length > 0;
  keyed($("log"), shown, (event) => event.id, (event) => make("li", {},
    make("time", { datetime: new Date(event.at_ms).toISOString() }, new Date(event.at_ms).toLocaleString([], { hour12: false })),
    make("span", { class: `state ${KINDS[event.kind] ?? ""}` }, event.kind), make("span", {}, event.text),
    event.stream && doc.streams[event.stream] ? make("a", {}, "picture", make("span", { class: "spoken" }, ` of ${event.stream} at ${clock(event.at_ms)}`)) : null),
    (item, event) => { const shows = item.querySelector("a"); if (shows) shows.href = pictured(event); });
}
$("kinds").addEventListener("change", () => doc && showLog());

// Hosts, sources, sinks, stores, load ----------------------------------------------------------------------------------------------------

/** A host's own page drains that host; the page of a deployment any of them. */
function showHosts() {
  const hosts = Object.entries(doc.hosts ?? {}), all = doc.down !== undefined;
  $("part-hosts").hidden = $("to-hosts").hidden = hosts.length < 2;
  if (hosts.length < 2) return;
  const there = {};
  for (const node of Object.values(doc.nodes)) for (const name of node.replicas) (there[name.slice(name.lastIndexOf("@") + 1)] ??= []).push(name);
  keyed($("hosts").tBodies[0], hosts, ([name]) => name, () => make("tr"), (row, [name, address]) => {
    const mine = there[name] ?? [], told = mine.map((replica) => doc.replicas[replica]?.state).filter(Boolean);
    const state = doc.down?.[name] !== undefined ? "DOWN" : !all && name !== doc.host ? "elsewhere" : told.length && told.every((one) => one === "DRAINED") ? "DRAINED" : "RUNNING";
    const known = row.cells[3]?.firstElementChild;
    let button = "";
    if (may() && mine.length && state === "RUNNING") {
      button = known ?? act("Drain", `Drain ${name}? Readers of ${mine.length === 1 ? mine[0] : `its ${mine.length} replicas`} go to twins on other hosts, which may take half a minute; then nothing of it runs here any more but sources and sinks. It is refused if one has no stable twin. The host's next start, or holdfast up, runs everything again.`,
        () => order("/v1/drain", token, { host: name }));
      button.setAttribute("aria-label", `Drain ${name}`);
    }
    cells(row, [name, { state }, mine.length > 6 ? number(mine.length) : mine.join(", "), button || (may() ? "" : "for operators"), address]);
  });
}

function showStores() {
  const stores = Object.entries(doc.stores ?? {}).sort(), kept = Object.entries(doc.deadlines ?? {}).sort();
  $("part-stores").hidden = $("to-stores").hidden = !stores.length && !kept.length;
  keyed($("stores").tBodies[0], stores, ([name]) => name, () => make("tr"), (row, [name, s]) =>
    cells(row, [name, { state: s.problem ? "FAILURE" : "RUNNING" }, number(s.waiting), number(s.outcomes?.durable), number(s.outcomes?.dropped), number(s.outcomes?.superseded), number(s.outcomes?.failed), number(s.retries), s.problem ?? ""]));
  $("has-deadlines").hidden = !kept.length;
  keyed($("deadlines").tBodies[0], kept, ([name]) => name, () => make("tr"), (row, [name, k]) => cells(row, [name, number(k.met), number(k.missed)]));
}

function showOutside() {
  const rows = [...Object.entries(doc.sources).map(([name, s]) => ({ key: `source ${name}`, row: ["source", s.from ?? name, s.stream, { state: s.state }, number(s.rows), s.lag === undefined ? "" : `${number(s.lag)} records`, s.why || s.last_error || ""] })),
    ...Object.entries(doc.sinks).map(([name, s]) => ({ key: `sink ${name}`, row: ["sink", `${name} → ${s.target ?? ""}`, s.stream, { state: s.state }, number(s.rows), s.lag_s === undefined ? "" : `${s.lag_s} s`, s.why ?? ""] }))];
  $("part-outside").hidden = $("to-outside").hidden = !rows.length;
  keyed($("outside").tBodies[0], rows, ({ key }) => key, () => make("tr"), (line, { row }) => cells(line, row));
}

/** The parts of all participants in reach, each with whose view it is: two that share a lease both tell of it. */
const parts = (loads, name) => loads.flatMap((load) => Object.entries(load[name] ?? {}).map(([key, part]) => ({ load, name: key, part, key: `${load.participant} ${key}` })));

function showLoad() {
  const loads = Object.values(doc.loads ?? {});
  $("part-load").hidden = $("to-load").hidden = !loads.length;
  if (!loads.length) return;
  say($("load-says"), loads.map((load) => `${load.participant}: CPU ${load.load?.cpu ?? 0} of ${load.capacity?.cpu ?? 0}, cost ${load.cost}; balances ${Object.entries(load.balances ?? {}).map(([name, sum]) => `${name} ${sum}`).join(", ") || "none"}`).join(". "));
  keyed($("tasks").tBodies[0], parts(loads, "tasks"), ({ key }) => key, () => make("tr"), (row, { load, part: task }) => {
    const partners = Object.keys(load.balances ?? {});
    const home = task.at === load.participant, known = row.cells[7]?.firstElementChild;
    const wanted = !may() || task.owner !== load.participant ? [] : home ? partners : [load.participant];
    let button = "";
    if (wanted.length) {
      const label = (to) => (home ? `Move to ${to}` : "Take home");
      button = known?.dataset.to === wanted.join(" ") ? known : make("span", { class: "row" }, ...wanted.map((to) =>
        act(label(to), `${label(to)}: ${task.task}? Its results stay the same.`, () => order("/v1/move", token, { node: task.task, to }))));
      button.dataset.to = wanted.join(" ");
    }
    cells(row, [task.task, task.owner, task.at, String(task.usage?.cpu ?? ""), number(task.rows_per_s), task.lease_state ?? "", task.price === undefined ? "" : String(task.price), button || (may() ? "" : "for operators")]);
  });
  keyed($("contracts").tBodies[0], parts(loads, "contracts"), ({ key }) => key, () => make("tr"), (row, { part: contract }) =>
    cells(row, [contract.contract, contract.buyer, contract.seller, `${contract.price_low} to ${contract.price_high}`, contract.agreed ? "yes" : contract.why || "no", String(contract.used), String(contract.paid)]));
  keyed($("ledger").tBodies[0], parts(loads, "ledger"), ({ key }) => key, () => make("tr"), (row, { name: lease, part: account }) => {
    const { last } = account;
    cells(row, [lease, account.contract, account.payer, account.payee, account.entries === undefined ? "" : `${number(account.entries)}${account.unconfirmed ? `, ${account.unconfirmed} not confirmed` : ""}`,
      String(account.amount), last ? `period ${last.period < 0 ? "taken back" : last.period}: ${last.units} units at ${last.price} = ${last.amount}` : ""]);
  });
}

// Light and dark ----------------------------------------------------------------------------------------------------------

function isDark() { return (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark"; }
function themed() { say($("theme"), isDark() ? "Light" : "Dark"); if (doc) { drawn = ""; showDiagram(); showStream(); } }
$("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; themed(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
themed();

if (token) enter(); else $("token").focus();
