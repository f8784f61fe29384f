// The page: what each section shows, and when it is drawn.

import { bytes, count, make, name, rate, setText, share, time } from "./format.js";
import { Feed } from "./feed.js";
import { Picture } from "./picture.js";
import { Plot, Series } from "./plots.js";
import { Table } from "./tables.js";

const $ = (selector) => document.querySelector(selector);
const series = new Series();
const filter = $("#filter");
const FRAME_MS = 4; // of drawing in one frame, about
let shown = null, paused = false, work = null, late = false;

const num = (title, field, text = count, more = {}) => ({ title, num: true, by: (row) => row[field], cell: (row) => text(row[field]), ...more });
const bad = (title, field, more = {}) => num(title, field, count, { cell: (row) => [count(row[field]), row[field] ? "is-bad" : ""], ...more });
const text = (title, field, more = {}) => ({ title, by: (row) => row[field], cell: (row) => row[field] || "–", ...more });
const wide = { wide: true };
const pair = (row) => `${row.stream} ${row.name}`;

const table = (id, label, columns, options) => new Table($(id), columns, { label, key: pair, ...options });

const tables = {
  peers: table("#mesh", "Peers", [
    text("peer", "name"), text("state", "state"),
    { title: "does", cell: (p) => p.roles.join(", ") || "looks on", text: true, ...wide },
    num("out /s", "published_s", rate), num("in /s", "delivered_s", rate), num("streams", "streams", count, wide),
    text("version", "software", wide),
    { title: "address", cell: (p) => p.addresses[0] ?? "–", text: true, ...wide },
  ], { key: (p) => p.name, state: (p) => (p.state === "here" ? (p.problem ? "bad" : "") : "gone"), hideEmpty: false }),
  streams: table("#streams", "Streams", [
    text("stream", "stream"),
    num("events/s", "published_s", rate), { title: "3 min", kind: "rate", plot: (s) => series.get(`rate ${s.stream}`) },
    num("behind", "behind", count, { cell: (s) => [count(s.behind), s.blocked ? "is-bad" : ""] }),
    { title: "3 min", kind: "lag", wide: true, plot: (s) => series.get(`behind ${s.stream}`) },
    num("bytes/s", "bytes_s", bytes, wide), num("readers", "subscribers", count, { cell: (s) => count(s.subscribers + s.groups), ...wide }),
    num("kept", "buffer_bytes", bytes, wide), bad("lost", "lost"),
    { title: "", text: true, cell: (s) => (s.blocked ? [`blocked by ${s.blocked_by.join(", ") || "a receiver"}`, "is-bad"] : s.is_here ? [`${s.overflow}${s.transport === "tcp" ? "" : ", multicast"}`, ""] : ["its peer is away", ""]), ...wide },
  ], { key: (s) => s.stream, rank: (s) => (s.blocked ? 0 : s.is_here ? 1 : 2), state: (s) => (!s.is_here ? "gone" : s.blocked ? "bad" : ""), hideEmpty: false }),
  subscribers: table("#subscribers", "Subscribers", [
    text("subscriber", "name"), text("stream", "stream", { text: true }),
    num("behind", "behind"), num("events/s", "delivered_s", rate, wide),
    { title: "state", by: (s) => s.state, cell: (s) => [s.state === "blocking" ? `blocks for ${time(s.blocked_s)}` : s.state, { live: "is-good", away: "is-odd", blocking: "is-bad", evicted: "is-bad" }[s.state]] },
    num("repaired", "repaired_frames", count, wide), num("delivered", "delivered", count, wide), bad("lost", "lost"),
  ], { rank: (s) => ({ blocking: 0, evicted: 1, away: 2, live: 3 }[s.state] ?? 4), state: (s) => ({ blocking: "bad", evicted: "bad", gone: "gone" }[s.state] ?? "") }),
  groups: table("#groups", "Work groups", [
    text("group", "name"), text("stream", "stream", { text: true }),
    num("lag", "lag"), { title: "3 min", kind: "lag", wide: true, plot: (g) => series.get(`lag ${g.stream} ${g.name}`) },
    num("done /s", "acked_s", rate), num("in flight", "in_flight", count, wide),
    num("members", "members", count, { by: (g) => g.members.length, cell: (g) => [count(g.members.length), g.lag && !g.members.length ? "is-bad" : ""] }),
    num("again", "redelivered", count, { cell: (g) => [count(g.redelivered), g.redelivered ? "is-odd" : ""] }),
    bad("dead", "dead"), bad("lost", "lost"),
  ], { rank: (g) => (g.lag && !g.members.length ? 0 : 1), state: (g) => (g.lag && !g.members.length ? "bad" : "") }),
  senders: table("#senders", "Multicast, sent", [
    text("stream", "stream"), num("receivers", "receivers"), num("packets/s", "packets_s", rate), num("packets", "packets", count, wide),
    num("NACKs", "nacks"), num("sent again", "repairs"), num("behind", "behind", count, wide), text("flow", "flow", wide),
    { title: "does not reach", text: true, cell: (s) => [s.unreached.join(", ") || "–", s.unreached.length ? "is-bad" : ""] },
  ], { key: (s) => s.stream, rank: (s) => -s.unreached.length }),
  receivers: table("#receivers", "Multicast, received", [
    text("receiver", "name"), text("stream", "stream", { text: true }), num("packets", "packets", count, wide), num("loss", "loss", share),
    num("missing", "missing", count, wide), num("NACKs", "nacks"), num("repaired", "repaired"), bad("lost", "lost"), bad("kernel drops", "kernel_drops", wide),
    num("repair p50", "repair_p50_s", time, wide), num("p99", "repair_p99_s", time, wide),
  ], { rank: (r) => -r.lost }),
  losses: table("#losses", "Losses", [
    text("subscription", "name"), text("stream", "stream", { text: true }),
    { title: "events", cell: (l) => (l.first === null ? "–" : l.count === 1 ? `${l.first}` : `${l.first} to ${l.stop - 1}`) },
    bad("count", "count"), text("reason", "reason"), num("seen", "seen_s", (s) => `${time(s)} ago`),
  ], { key: (l) => `${l.stream} ${l.name} ${l.first} ${l.reason}`, rank: (l) => l.seen_s }),
  ledger: table("#ledger", "Ledger", [
    { title: "adds up", by: (l) => Number(l.reconciles), cell: (l) => (l.reconciles ? ["✓ yes", "is-good"] : ["✗ no", "is-bad"]) },
    text("subscription", "name", { text: true }), text("stream", "stream", { text: true }),
    num("published", "published", count), num("delivered", "delivered", count), num("filtered", "filtered", count, wide),
    num("in flight", "in_flight", count, wide), num("dead", "dead", count, wide), bad("lost", "lost"), text("state", "state", wide),
  ], { rank: (l) => (l.reconciles ? 1 : 0), state: (l) => (l.reconciles ? "" : "bad") }),
  logs: table("#logs", "Logs", [
    text("stream", "stream"), text("kept by", "peer", { text: true, ...wide }), num("events", "events", count, wide),
    num("on disk", "disk_bytes", bytes), num("oldest", "oldest_s", time), { title: "retention", by: (l) => l.retention ?? "", cell: (l) => l.retention ?? "all" },
    num("unsynced", "unsynced_bytes", bytes, wide), num("held for", "holds", count, { cell: (l) => (l.holds ? `${l.holds} (${bytes(l.held_bytes)})` : "–"), ...wide }),
    num("sync p99", "sync_p99_s", time, wide), text("path", "path", { text: true, ...wide }),
    { title: "", text: true, cell: (l) => (l.problem || !l.is_open ? [l.problem || "not open", "is-bad"] : ["✓", "is-good"]) },
  ], { key: (l) => `${l.stream} ${l.peer}`, rank: (l) => (l.problem || !l.is_open ? 0 : 1), state: (l) => (l.problem || !l.is_open ? "bad" : "") }),
  sink: table("#sink", "Tables of the sink", [
    text("table", "output"), num("rows", "rows"), num("commits", "commits", count, wide), num("behind", "lag_events"), num("age", "lag_s", time),
    num("batch", "batch_ms", (ms) => time(ms / 1000), wide), bad("quarantined", "quarantined"), bad("lost", "lost"),
    { title: "", text: true, cell: (o) => [o.problem || "✓", o.problem ? "is-bad" : "is-good"] },
  ], { key: (o) => o.output }),
};

const picture = new Picture($("#mesh"), (peer) => {
  filter.value = filter.value === peer ? "" : peer;
  draw();
});

// --- the figures at the top ---

const tiles = {
  peers: ["peers here", (t) => [count(t.peers), t.gone ? `${t.gone} away` : "", t.gone ? "odd" : ""]],
  published: ["events/s published", (t) => [rate(t.published_s), `${bytes(t.bytes_s)}/s`, ""], "published_s"],
  delivered: ["events/s delivered", (t) => [rate(t.delivered_s), "", ""], "delivered_s"],
  behind: ["furthest behind", (t) => [count(t.behind), "events", ""], "behind"],
  blocked: ["streams blocked", (t) => [count(t.blocked), "", t.blocked ? "bad" : "good"]],
  lag: ["lag of groups", (t) => [count(t.group_lag), t.dead ? `${count(t.dead)} dead letters` : "", t.dead ? "odd" : ""]],
  lost: ["events lost", (t) => [count(t.lost), "", t.lost ? "bad" : "good"]],
  ledger: ["ledger", (t, rows) => (t.unreconciled ? [count(t.unreconciled), "rows do not add up", "bad"] : [rows ? "✓" : "–", rows ? `${rows} rows add up` : "nobody subscribes", rows ? "good" : ""])],
};
for (const tile of Object.values(tiles)) {
  const node = make("div"), value = make("dd"), figure = make("span"), note = make("small");
  value.append(figure, " ", note);
  node.append(make("dt", "", tile[0]), value);
  const plot = tile[2] ? new Plot(tile[2] === "behind" ? "lag" : "") : null;
  if (plot) node.append(plot.node);
  Object.assign(tile, { node, figure, note, plot });
  $("#totals dl").append(node);
}

function drawTotals(view) {
  for (const tile of Object.values(tiles)) {
    const [figure, note, state] = tile[1](view.totals, view.ledger.length);
    setText(tile.figure, figure);
    setText(tile.note, note);
    if (tile.node.className !== state) tile.node.className = state;
    tile.plot?.show(series.get(`mesh ${tile[2]}`));
  }
}

// --- what needs attention ---

const listed = new Map();

function drawProblems(view) {
  const list = $("#problems ul"), left = new Set(listed.keys());
  const problems = view.problems;
  problems.forEach((problem, n) => {
    const key = `${problem.what}\n${problem.problem}`;
    left.delete(key);
    let item = listed.get(key);
    if (!item) {
      item = { node: make("li"), age: make("time"), what: make("b", "", name(problem.what)), text: make("span", "", name(problem.problem)) };
      item.node.append(item.age, item.what, item.text);
      listed.set(key, item);
    }
    item.node.className = problem.weight;
    setText(item.age, time(problem.for_s));
    if (list.children[n] !== item.node) list.insertBefore(item.node, list.children[n] ?? null);
  });
  for (const key of left) {
    listed.get(key).node.remove();
    listed.delete(key);
  }
  setText($("#problems .count"), problems.length ? String(problems.length) : "");
  $("#problems .none").hidden = problems.length > 0;
}

// --- drawing: in pieces, so that no frame takes long ---

function draw() {
  if (!shown || paused) return;
  late = work !== null;
  if (late) return;
  work = pieces();
  requestAnimationFrame(step);
}

function step() {
  const until = performance.now() + FRAME_MS;
  let done = false;
  while (!done && performance.now() < until) done = work.next().done;
  if (!done) return requestAnimationFrame(step);
  work = null;
  if (late) draw();
}

function* pieces() {
  const { view, sink, left_out: leftOut = {} } = shown;
  const wanted = filter.value.trim().toLowerCase();
  tables.sink.show(sink?.outputs ?? [], wanted);
  yield* tables.sink.fills();
  if (!view) return;
  const title = `${name(view.mesh)} · seen from ${name(view.peer)}`;
  setText($("#title"), title);
  document.title = `${view.problems.length ? `(${view.problems.length}) ` : ""}${title}`;
  drawTotals(view);
  drawProblems(view);
  yield;
  picture.show(view);
  for (const [id, one] of Object.entries(tables)) {
    if (id === "sink") continue;
    yield;
    one.show(view[id], wanted, leftOut[id]);
    yield* one.fills();
  }
}

function remember(event) {
  const { view, history } = event;
  if (!view) return;
  if (history) {
    for (const [key, points] of Object.entries(history.mesh)) series.set(`mesh ${key}`, points);
    for (const [stream, [rates, behind]] of Object.entries(history.streams)) {
      series.set(`rate ${stream}`, rates);
      series.set(`behind ${stream}`, behind);
    }
    for (const [stream, group, lag] of history.groups) series.set(`lag ${stream} ${group}`, lag);
    return;
  }
  const found = new Map();
  for (const key of ["published_s", "delivered_s", "behind", "lost"]) found.set(`mesh ${key}`, view.totals[key]);
  for (const s of view.streams) {
    if (!s.is_here) continue;
    found.set(`rate ${s.stream}`, s.published_s);
    found.set(`behind ${s.stream}`, s.behind);
  }
  for (const g of view.groups) found.set(`lag ${g.stream} ${g.name}`, g.lag);
  series.add(found);
}

function tell(word, className) {
  const state = $("#state");
  if (state.textContent !== word) state.textContent = word;
  state.className = `pill ${className}`;
  $("#main").classList.toggle("stale", className === "bad");
}

const feed = new Feed({
  event(event) {
    remember(event);
    if (!event.view && !event.sink) return;
    shown = event;
    tell(paused ? "paused" : "live", paused ? "" : "live");
    if (!document.hidden) draw();
  },
  state: (word, text) => tell(`${text}; trying again`, "bad"),
  token(wrong) {
    tell("a token is needed", "");
    $("#login").hidden = false;
    $("#main").hidden = true;
    if (wrong) setText($("#login-note"), "That is not the token.");
    $("#token").focus();
  },
});

$("#login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("#token").value.trim();
  $("#token").value = "";
  $("#login").hidden = true;
  $("#main").hidden = false;
  feed.use(token);
});
$("#pause").addEventListener("click", (event) => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", String(paused));
  setText(event.target, paused ? "Go on" : "Pause");
  tell(paused ? "paused" : "live", paused ? "" : "live");
  draw();
});
filter.addEventListener("input", draw);
document.addEventListener("visibilitychange", () => document.hidden || draw());
feed.run();
