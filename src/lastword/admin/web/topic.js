// One topic: its log drawn to scale, the next run, past runs and snapshots, settings, and actions.

import { get, job, send, topicPath } from "./api.js";
import { h, set, table } from "./dom.js";
import { ago, bytes, count, duration, percent, plural, time } from "./format.js";
import { legend, scaleOf, strip } from "./strip.js";

export const title = (parameters) => parameters.get("name") ?? "Topic";

const FIRST_PARTITIONS = 12;

export async function show(main, parameters, life) {
  const name = parameters.get("name") ?? "";
  const encoded = encodeURIComponent(name);
  const view = { name, life, layout: null, drawn: "", all: false };
  const part = (label, ...children) => h("section", { class: "card", "aria-label": label }, children);
  const alerts = h("section", { class: "alerts", "aria-label": "Alerts", "aria-live": "polite" });
  const facts = h("dl", { class: "totals" });
  const log = h("div", {}), next = h("div", {}), runs = h("div", {}), settings = h("div", {});
  view.log = log;
  view.refresh = async () => {
    const found = await get(`/v1/views/topics/${encoded}`, { estimates: view.layout !== null && view.layout.segments <= 512 }, life.signal);
    const first = view.layout === null;
    view.layout = found;
    set(alerts, found.problems.length > 0 && h("ul", {}, found.problems.map((each) => h("li", {}, `${each[0].toUpperCase()}${each.slice(1)}.`))));
    set(facts, sums(found));
    drawLog(view);
    set(next, plan(found));
    showRuns(runs, found, name);
    // Estimates read many files, so they come once the page is shown.
    if (first && found.segments > 0 && found.segments <= 512) setTimeout(() => !life.over && view.refresh().catch(() => {}), 50);
  };

  await life.every(4000, async () => {
    if (!view.built) {
      const described = await get(`/v1/views/topics/${encoded}`, {}, life.signal);
      view.built = true;
      set(
        main,
        h(
          "div",
          { class: "page" },
          h("p", { class: "crumb" }, h("a", { href: "/", "data-page": true }, "Topics")),
          h("div", { class: "title-row" }, h("h1", { class: "name" }, name), h("span", { class: "chip" }, described.cleanup_policy), h("span", { class: "links" }, h("a", { href: `/records?name=${encoded}`, "data-page": true }, "Records"), h("a", { href: `/records?name=${encoded}&view=state`, "data-page": true }, "State"), h("a", { href: `/scene?topic=${encoded}`, "data-page": true }, "Scene"))),
          alerts,
          facts,
          actions(view),
          part("The log", h("div", { class: "card-head" }, h("h2", {}, "The log"), legend()), log),
          h("div", { class: "two" }, part("The next run", h("h2", {}, "The next run"), next), part("Runs and snapshots", h("h2", {}, "Runs and snapshots"), runs)),
          part("Settings", settings),
        ),
      );
      showSettings(settings, view);
    }
    await view.refresh();
  });
}

function sums(found) {
  const reclaimed = found.reclaimed_bytes;
  return [
    ["Records", count(found.records)],
    ["Segments", count(found.segments)],
    ["Sealed", bytes(found.sealed_bytes)],
    ["Local", bytes(found.wal_bytes)],
    ["Dirty", percent(found.dirty_ratio)],
    ["Reclaimed by last runs", bytes(reclaimed)],
  ].map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value)));
}

// ------------------------------------------------------------------------------------------------- the log

function drawLog(view) {
  const { layout, log } = view;
  const drawn = JSON.stringify([layout.partition_list, view.all]);
  if (drawn === view.drawn) return;
  view.drawn = drawn;
  const partitions = layout.partition_list;
  const scale = scaleOf(partitions);
  const shown = view.all ? partitions : partitions.slice(0, FIRST_PARTITIONS);
  const focused = document.activeElement?.closest?.(".partition-place")?.dataset.partition;
  const rows = shown.map((each) => {
    const place = h("div", { class: "partition-place", "data-partition": each.partition });
    place.partition = each;
    return place;
  });
  const draw = (place) => set(place, strip(place.partition, scale, layout.now_ms));
  // Strips far down the page are drawn when they come near.
  const watcher = new IntersectionObserver(
    (entries) => entries.filter((each) => each.isIntersecting).forEach((each) => (watcher.unobserve(each.target), draw(each.target))),
    { rootMargin: "600px" },
  );
  set(
    log,
    rows,
    !view.all && partitions.length > shown.length &&
      h("button", { class: "quiet", onclick: () => ((view.all = true), drawLog(view)) }, `Show all ${count(partitions.length)} partitions`),
  );
  rows.forEach((each, index) => (index < FIRST_PARTITIONS ? draw(each) : watcher.observe(each)));
  view.life.signal.addEventListener("abort", () => watcher.disconnect(), { once: true });
  if (focused) log.querySelector(`[data-partition="${focused}"] svg`)?.focus({ preventScroll: true });
}

// ------------------------------------------------------------------------------------------------ the plan

function plan(found) {
  const due = Object.entries(found.due);
  const drawn = found.partition_list.flatMap((each) => each.segments);
  const known = drawn.filter((each) => each[5] !== null);
  const garbage = known.reduce((sum, each) => sum + each[5], 0);
  const reclaimed = known.reduce((sum, each) => sum + (each[2] ? (each[3] * each[5]) / each[2] : 0), 0);
  const records = drawn.reduce((sum, each) => sum + each[2], 0);
  const compacts = found.cleanup_policy.includes("compact");
  return [
    due.length
      ? h("p", { class: "lead" }, h("b", {}, "Due"), `: ${due.map(([reason, number]) => `${plural(number, "partition")} by ${reason}`).join(", ")}.`)
      : h("p", { class: "lead" }, h("b", {}, "Not due"), compacts ? `: ${found.segments ? `the dirty ratio is ${percent(found.dirty_ratio)}` : "nothing is sealed yet"}, and nothing else requires a run.` : ": this topic is not compacted."),
    compacts &&
      drawn.length > 0 &&
      (known.length === drawn.length
        ? h("p", {}, `A run now would remove about ${plural(garbage, "record")} of the ${count(records)} sealed ones, and reclaim about ${bytes(reclaimed)}.`)
        : h("p", { class: "soft" }, found.segments > 512 ? "There are too many segments to estimate here what a run would reclaim; use a dry run." : "Estimating what a run would reclaim …")),
    found.unsealed_records > 0 && h("p", { class: "soft" }, `${plural(found.unsealed_records, "record")} only in the WAL ${found.unsealed_records === 1 ? "is" : "are"} not counted: a compaction from this page seals first.`),
  ];
}

// ------------------------------------------------------------------------------------------------- actions

function actions(view) {
  const says = h("div", { class: "job", role: "status", "aria-live": "polite" });
  const buttons = [
    ["Seal", "quiet", () => [topicPath(view.name, "/seal"), {}, sealed]],
    ["Dry run", "quiet", () => [topicPath(view.name, "/compact"), { dry_run: true }, dryRun]],
    ["Compact", "primary", () => [topicPath(view.name, "/compact"), {}, compacted]],
  ].map(([label, kind, what]) => h("button", { class: kind, "data-act": label, onclick: () => act(label, ...what()) }, label));

  async function act(label, path, body, tell) {
    const bar = h("progress", { "aria-label": `${label}: progress` });
    const stage = h("span", { class: "soft" }, `${label} started …`);
    set(says, h("div", { class: "running" }, bar, stage));
    buttons.forEach((each) => (each.disabled = true));
    try {
      const result = await job(path, body, (name, done, total) => {
        if (total) {
          bar.max = total;
          bar.value = done;
          set(stage, `${{ seal: "Sealing", compact: "Compacting" }[name] ?? name}: ${count(done)} of ${count(total)}${name === "compact" ? " records" : ""}`);
        }
      });
      set(says, h("p", { class: "done" }, tell(result)));
    } catch (error) {
      set(says, h("p", { class: "problem" }, error.message));
    } finally {
      buttons.forEach((each) => (each.disabled = false));
    }
    view.refresh().catch(() => {});
  }

  return h("div", { class: "actions" }, h("div", { class: "buttons" }, buttons), says);
}

function sealed(result) {
  const problems = result.problems.map((each) => ` Partition ${each.partition}: ${each.problem}.`);
  return [result.segments.length ? `Sealed ${plural(result.records, "record")} in ${plural(result.segments.length, "segment")}, ${bytes(result.size_bytes)}, in ${duration(result.duration_s * 1000)}.` : "There was nothing to seal.", problems];
}

function dryRun(result) {
  if (result.nothing_to_compact && !result.unsealed_records) return sentence(result.nothing_to_compact);
  const sum = (pick) => result.partitions.reduce((total, each) => total + pick(each), 0);
  const garbage = sum((each) => each.estimate?.garbage_records ?? 0), reclaimed = sum((each) => each.estimate?.reclaimed_bytes ?? 0);
  const first = result.unsealed_records ? `It would first seal ${plural(result.unsealed_records, "record")}. ` : "";
  if (!result.partitions.length) return `${first}Nothing that is already sealed needs a run.`;
  return `${first}It would compact ${plural(result.partitions.length, "partition")}: ${plural(sum((each) => each.records), "record")} in ${plural(sum((each) => each.segments), "segment")}. About ${plural(garbage, "record")} would be removed, about ${bytes(reclaimed)}. Nothing was changed.`;
}

function compacted(result) {
  const problems = result.partitions.filter((each) => each.problem).map((each) => ` Partition ${each.partition}: ${each.problem}`);
  if (result.nothing_to_compact) return sentence(result.nothing_to_compact);
  // If everything failed, it is shown in red like any other error.
  const failed = result.failed_topics.map((each) => each.problem);
  if (failed.length || problems.length === result.partitions.length) throw new Error(`Not compacted: ${[...failed, ...problems.map((each) => each.trim())].join("; ")}`);
  const total = result.total;
  return [`Compacted in ${duration(result.duration_s * 1000)}: ${count(total.records_before)} → ${plural(total.records_after, "record")}, ${bytes(total.bytes_before)} → ${bytes(total.bytes_after)}.`, problems];
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);

// --------------------------------------------------------------------------------------- runs and snapshots

const WORDS = { compact: "Compacted", seal: "Sealed", retention: "Retention", create: "Created", alter: "Settings changed", erase: "Erased keys", "delete-records": "Records deleted" };

function showRuns(place, found, name) {
  const drawn = JSON.stringify(found.snapshots.map((each) => each.id));
  if (place.drawn === drawn) return;
  place.drawn = drawn;
  const open = place.querySelector("details")?.open;
  const at = (snapshot, view) => `/records?name=${encodeURIComponent(name)}&as_of=snapshot:${snapshot.id}${view}`;
  const what = (snapshot) => {
    const details = snapshot.details;
    if (snapshot.operation === "compact") return [arrow(details.records, count, "records"), arrow(details.bytes, bytes)].filter(Boolean).join(", ");
    return [details.records && plural(Number(details.records), "record"), details.segments && (/^\d+$/.test(details.segments) ? plural(Number(details.segments), "segment") : `segments ${details.segments}`)].filter(Boolean).join(" in ");
  };
  const columns = [
    { title: "When", cell: (each) => h("span", { title: time(each.committed_ms) }, ago(each.committed_ms, found.now_ms)) },
    { title: "What", cell: (each) => h("b", { class: "plain" }, WORDS[each.operation] ?? each.operation) },
    { title: "Before and after", cell: what },
    { title: "Took", number: true, cell: (each) => (each.duration_ms === null ? "" : duration(each.duration_ms)) },
    { title: "As of then", cell: (each) => h("span", { class: "links" }, h("a", { href: at(each, ""), "data-page": true }, "records"), h("a", { href: at(each, "&view=state"), "data-page": true }, "state")) },
  ];
  const few = 6;
  set(
    place,
    table("Runs and snapshots", columns, found.snapshots.slice(0, few), { class: "dense" }),
    found.snapshots.length > few &&
      h("details", { open }, h("summary", {}, `${count(found.snapshots.length - few)} older`), table("Older snapshots", columns, found.snapshots.slice(few), { class: "dense" })),
  );
}

function arrow(text, show, unit = "") {
  const [before, after] = (text ?? "").split(" -> ").map(Number);
  return after === undefined ? "" : `${show(before)} → ${show(after)}${unit && ` ${unit}`}`;
}

// ------------------------------------------------------------------------------------------------ settings

async function showSettings(place, view) {
  const search = h("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings" });
  const own = h("input", { type: "checkbox" });
  const list = h("div", { class: "settings" });
  set(place, h("div", { class: "card-head" }, h("h2", {}, "Settings"), h("label", { class: "check" }, own, "only this topic's own"), search), list);
  let settings = [];
  const render = () => {
    const wanted = search.value.toLowerCase();
    const found = settings.filter((each) => each.key.includes(wanted) && (!own.checked || each.source === "topic"));
    set(list, found.map((each) => setting(each, view, load)), !found.length && h("p", { class: "empty-note" }, own.checked && !wanted ? "This topic has no settings of its own." : "No setting name contains this."));
  };
  async function load() {
    settings = await get(`/v1/views/topics/${encodeURIComponent(view.name)}/settings`, {}, view.life.signal);
    render();
  }
  search.addEventListener("input", render);
  own.addEventListener("change", render);
  await load().catch((error) => error.name !== "AbortError" && set(list, h("p", { class: "problem" }, error.message)));
}

const plainly = (text) => text.replaceAll("`", "");

/** Large numbers of milliseconds and bytes in readable form. */
function human(each) {
  const number = Number(each.value);
  if (!each.value || !Number.isFinite(number) || number < 1000) return "";
  if (number >= Number.MAX_SAFE_INTEGER) return "no limit";
  return each.key.endsWith(".ms") ? duration(number) : each.key.endsWith(".bytes") ? bytes(number) : "";
}

function setting(each, view, reload) {
  const row = h("div", { class: "setting", "data-key": each.key });
  const source = each.source === "topic" ? "this topic's own" : `${each.source}${each.where ? `: ${each.where}` : ""}`;
  const read = () =>
    set(
      row,
      h("code", { class: "key" }, each.key),
      h("code", { class: "value" }, each.value === "" ? h("i", { class: "soft" }, plainly(each.unset)) : each.value, h("span", { class: "soft human" }, human(each))),
      h("span", { class: `source ${each.source === "topic" ? "own" : ""}` }, source),
      h("button", { class: "text", "aria-label": `Change ${each.key}`, onclick: edit }, "Change"),
    );
  async function change(body) {
    const problem = row.querySelector(".problem");
    set(problem);
    try {
      const done = await send("PATCH", topicPath(view.name), body);
      await reload();
      if (done.warning) alert(done.warning);
      view.refresh().catch(() => {});
    } catch (error) {
      set(problem, error.message);
    }
  }
  function edit() {
    const input = h("input", { class: "value", "aria-label": each.key, value: each.value, spellcheck: "false", autocomplete: "off" });
    const form = h(
      "form",
      { class: "edit", onsubmit: (event) => (event.preventDefault(), change({ set: { [each.key]: input.value } })) },
      h("code", { class: "key" }, each.key),
      input,
      h("span", { class: "buttons" }, h("button", { class: "primary small", type: "submit" }, "Save"), each.source === "topic" && h("button", { class: "quiet small", type: "button", onclick: () => change({ unset: [each.key] }) }, "Inherit"), h("button", { class: "text", type: "button", onclick: read }, "Cancel")),
      h("p", { class: "meaning" }, `${sentence(plainly(each.meaning))}. Allowed: ${plainly(each.allowed)}.`),
      h("p", { class: "problem", role: "alert" }),
    );
    form.addEventListener("keydown", (event) => event.key === "Escape" && read());
    set(row, form);
    input.focus();
    input.select();
  }
  read();
  return row;
}
