// All topics, the health of the processes, and the problems as text.

import { get } from "./api.js";
import { h, set } from "./dom.js";
import { ago, bytes, count, duration, percent, plural } from "./format.js";

const MOST_ROWS = 200;
export const title = () => "Overview";

const COLUMNS = [
  { id: "name", title: "Topic" },
  { id: "cleanup_policy", title: "Policy" },
  { id: "partitions", title: "Partitions", number: true },
  { id: "records", title: "Records", number: true },
  { id: "wal_bytes", title: "Local", number: true },
  { id: "sealed_bytes", title: "Sealed", number: true },
  { id: "dirty_ratio", title: "Dirty", number: true },
  { id: "due", title: "Due" },
  { id: "last_run_ms", title: "Last run", number: true },
  { id: "tiering_lag_ms", title: "Tiering lag", number: true },
];

export async function show(main, parameters, life) {
  const state = { search: parameters.get("search") ?? "", sort: "name", down: false, most: MOST_ROWS, topics: [], nowMs: 0 };
  const health = h("section", { class: "health", "aria-label": "Health" });
  const alerts = h("section", { class: "alerts", "aria-label": "Alerts", "aria-live": "polite" });
  const totals = h("dl", { class: "totals" });
  const search = h("input", { type: "search", placeholder: "Search topics", "aria-label": "Search topics", value: state.search });
  const body = h("div", {});
  set(main, h("div", { class: "page" }, h("div", { class: "title-row" }, h("h1", {}, "Overview"), health), alerts, totals, h("div", { class: "toolbar" }, search), body));

  search.addEventListener("input", () => {
    state.search = search.value;
    render(body, state);
  });
  life.on(document, "keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, textarea, select")) {
      event.preventDefault();
      search.focus();
    }
  });

  let status = null, engine = null;
  const tell = () => status && showAlerts(alerts, words(state.topics, status, engine));
  const look = async () => {
    const found = await get("/v1/views/overview", {}, life.signal);
    state.topics = found.topics;
    state.nowMs = found.now_ms;
    set(totals, sums(found.topics));
    render(body, state);
    tell();
    // The server has not looked at some topics yet: ask again soon.
    if (found.topics.some((each) => each.pending && !each.problems.length)) setTimeout(() => !life.over && look().catch(() => {}), 800);
  };
  // A worker that does not answer must not delay the topics.
  const ask = async () => {
    [status, engine] = await Promise.all([get("/v1/status", {}, life.signal), get("/v1/views/engine", {}, life.signal)]);
    set(health, processes(status, engine));
    tell();
  };
  await Promise.all([life.every(4000, look), life.every(4000, ask)]);
}

// ------------------------------------------------------------------------------------------------- health

function light(name, good, says) {
  return h("div", { class: `light ${good}`, title: says }, h("span", { class: "dot", "aria-hidden": "true" }), h("b", {}, name), h("span", { class: "soft" }, says));
}

function processes(status, engine) {
  const isReady = (name) => !status.problems.some((each) => each.startsWith(`the ${name}`));
  const up = (name) => {
    const child = status.server?.processes[name];
    return child?.since_ms ? `up ${duration(Date.now() - child.since_ms)}` : "not running";
  };
  const isSpark = engine.factory.includes(".spark:");
  const states = { "not started": "starts when needed", running: "running", gone: "gone", "being started": "starting", unknown: "unknown", ready: "ready" };
  return [
    light("Broker", isReady("broker") ? "good" : "bad", isReady("broker") ? up("broker") : "not ready"),
    light("Worker", isReady("worker") ? "good" : "bad", isReady("worker") ? up("worker") : "not answering"),
    isSpark
      ? light("Spark", engine.state === "gone" ? "bad" : engine.state === "running" ? "good" : "idle", states[engine.state] ?? engine.state)
      : light("Spark", "idle", "not used: compacts in process"),
  ];
}

function words(topics, status, engine) {
  const said = status.problems.map((each) => `${each[0].toUpperCase()}${each.slice(1)}.`);
  for (const [name, child] of Object.entries(status.server?.processes ?? {})) {
    if (child.restarts) said.push(`The ${name} ended by itself and was restarted ${plural(child.restarts, "time")}; last ended by: ${child.last_end}.`);
  }
  for (const [name, job] of Object.entries(status.worker.jobs ?? {})) {
    if (job.failures) said.push(`The worker's job “${name}” has failed ${plural(job.failures, "time")} in a row: ${job.last_error}`);
  }
  if (engine.state === "gone") said.push("Spark has ended; the next compaction restarts it.");
  for (const topic of topics) {
    for (const problem of topic.problems) said.push([h("a", { href: link(topic.name), "data-page": true }, topic.name), `: ${problem}.`]);
    if (topic.due?.["max.compaction.lag.ms"]) {
      said.push([h("a", { href: link(topic.name), "data-page": true }, topic.name), `: ${plural(topic.due["max.compaction.lag.ms"], "partition")} overdue for compaction, by max.compaction.lag.ms.`]);
    }
    if (topic.tiering_lag_ms > 3_600_000) {
      said.push([h("a", { href: link(topic.name), "data-page": true }, topic.name), `: records have been waiting to be sealed for ${duration(topic.tiering_lag_ms)}.`]);
    }
  }
  return said;
}

function showAlerts(alerts, said) {
  const most = 8;
  set(
    alerts,
    said.length > 0 && h("ul", {}, said.slice(0, most).map((each) => h("li", {}, each)), said.length > most && h("li", {}, `and ${count(said.length - most)} more.`)),
  );
}

function sums(topics) {
  const sum = (name) => topics.reduce((total, each) => total + (each[name] ?? 0), 0);
  const due = topics.filter((each) => Object.keys(each.due ?? {}).length).length;
  return [
    ["Topics", count(topics.length)],
    ["Records", count(sum("records"))],
    ["Local", bytes(sum("wal_bytes"))],
    ["Sealed", bytes(sum("sealed_bytes"))],
    ["Due for compaction", count(due)],
  ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

// ------------------------------------------------------------------------------------------------- topics

const link = (name) => `/topic?name=${encodeURIComponent(name)}`;

function render(body, state) {
  const wanted = state.search.toLowerCase();
  const found = state.topics.filter((each) => each.name.toLowerCase().includes(wanted));
  found.sort((left, right) => compare(value(left, state.sort), value(right, state.sort)) * (state.down ? -1 : 1) || compare(left.name, right.name));
  if (!state.topics.length) {
    set(body, h("p", { class: "empty-note" }, "There are no topics yet. Create one with ", h("code", {}, "lastword topic create users --cleanup-policy compact"), " or with any Kafka client."));
    return;
  }
  const active = document.activeElement?.dataset?.sort;
  const head = COLUMNS.map((column) =>
    h(
      "th",
      { scope: "col", class: column.number ? "number" : null, "aria-sort": state.sort === column.id ? (state.down ? "descending" : "ascending") : null },
      h("button", { class: "sort", "data-sort": column.id, onclick: () => resort(body, state, column) }, column.title, h("span", { "aria-hidden": "true", class: "arrow" }, state.sort === column.id ? (state.down ? "↓" : "↑") : "")),
    ),
  );
  set(
    body,
    h("table", { class: "topics", "aria-label": "Topics" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, found.slice(0, state.most).map((each) => row(each, state.nowMs)))),
    found.length === 0 && h("p", { class: "empty-note" }, "No topic name contains this."),
    found.length > state.most &&
      h("button", { class: "quiet", onclick: () => ((state.most += 500), render(body, state)) }, `Show more (${count(found.length - state.most)} left)`),
  );
  if (active) body.querySelector(`[data-sort="${active}"]`)?.focus();
}

function resort(body, state, column) {
  state.down = state.sort === column.id ? !state.down : Boolean(column.number) || column.id === "due";
  state.sort = column.id;
  render(body, state);
}

const value = (topic, id) => (id === "due" ? Object.keys(topic.due ?? {}).length : (topic[id] ?? -1));
const compare = (left, right) => (typeof left === "string" ? left.localeCompare(right) : left - right);

function row(topic, nowMs) {
  const due = Object.entries(topic.due ?? {}).map(([reason, number]) => `${reason}${number > 1 ? ` (${number})` : ""}`);
  const cells = [
    h("a", { href: link(topic.name), "data-page": true }, topic.name),
    topic.state === "unreadable" ? h("span", { class: "due" }, "unreadable") : (topic.cleanup_policy ?? "–"),
    count(topic.partitions),
    count(topic.records),
    bytes(topic.wal_bytes),
    bytes(topic.sealed_bytes),
    topic.dirty_ratio === null || topic.dirty_ratio === undefined
      ? h("span", { class: "soft" }, "–")
      : h("span", { class: "meter-cell" }, h("span", { class: "meter", "aria-hidden": "true", "--share": topic.dirty_ratio }), h("span", { class: "share" }, percent(topic.dirty_ratio))),
    due.length ? h("span", { class: "due" }, due.join(", ")) : h("span", { class: "soft" }, topic.pending ? "…" : "no"),
    topic.last_run_ms ? ago(topic.last_run_ms, nowMs) : h("span", { class: "soft" }, topic.pending ? "…" : "never"),
    topic.tiering_lag_ms ? duration(topic.tiering_lag_ms) : h("span", { class: "soft" }, topic.pending ? "…" : "none"),
  ];
  return h(
    "tr",
    { class: topic.problems.length ? "has-problem" : null },
    cells.map((cell, index) => h("td", { class: COLUMNS[index].number ? "number" : null, "data-label": COLUMNS[index].title }, cell)),
  );
}
