// Records of a topic by offset, time or key, and its state; each with why it stays or goes, if that is wanted.

import { get, topicPath } from "./api.js";
import { go } from "./app.js";
import { h, set } from "./dom.js";
import { bytes, bytesOf, count, hex, isNull, line, plural, prettyJson, textOf, time, visibleLines } from "./format.js";

const PAGE = 50;
const PAGE_BYTES = 4 << 20;
const MOST_SHOWN = 200_000;

export const title = (parameters) => `Records${parameters.get("name") ? ` of ${parameters.get("name")}` : ""}`;

export async function show(main, parameters, life) {
  const name = parameters.get("name");
  const topic = name && (await get(`/v1/views/topics/${encodeURIComponent(name)}`, {}, life.signal).catch(missing));
  if (!topic) return choose(main, (await get("/v1/views/overview", {}, life.signal)).topics.map((each) => each.name), name);
  const view = { name, life, topic, parameters, as: sessionStorage.getItem("as") ?? "auto" };
  const state = parameters.get("view") === "state";
  const results = h("div", { class: "results", "aria-live": "polite" });
  view.results = results;
  set(
    main,
    h(
      "div",
      { class: "page" },
      h("p", { class: "crumb" }, h("a", { href: "/", "data-page": true }, "Topics"), " / ", h("a", { href: `/topic?name=${encodeURIComponent(name)}`, "data-page": true }, name)),
      h("div", { class: "title-row" }, h("h1", {}, state ? "State" : "Records"), tabs(view, state)),
      parameters.get("as_of") && past(view),
      state ? stateForm(view) : logForm(view),
      results,
    ),
  );
  await load(view, state);
}

function missing(error) {
  if (error.status === 404) return null;
  throw error;
}

function choose(main, known, missing) {
  const select = h("select", { "aria-label": "Topic", onchange: () => go(`/records?name=${encodeURIComponent(select.value)}`) }, h("option", { value: "" }, "Choose a topic …"), known.map((each) => h("option", { value: each }, each)));
  set(main, h("div", { class: "page" }, h("h1", {}, "Records"), missing && h("p", { class: "problem", role: "alert" }, `There is no topic “${missing}”.`), known.length ? h("div", { class: "toolbar" }, select) : h("p", { class: "empty-note" }, "There is no topic yet.")));
}

const address = (view, changes) => {
  const parameters = new URLSearchParams(view.parameters);
  for (const [name, value] of Object.entries(changes)) value === null || value === "" ? parameters.delete(name) : parameters.set(name, value);
  return `/records?${parameters}`;
};

function tabs(view, state) {
  const clear = { view: null, from: null, key: null, key_base64: null, time: null, search: null, after: null };
  return h(
    "span",
    { class: "tabs" },
    h("a", { href: address(view, clear), "data-page": true, "aria-current": state ? null : "true" }, "Log"),
    h("a", { href: address(view, { ...clear, view: "state" }), "data-page": true, "aria-current": state ? "true" : null }, "State"),
  );
}

function past(view) {
  return h("p", { class: "notice" }, `As of ${view.parameters.get("as_of").replace(":", " ")}. `, h("a", { href: address(view, { as_of: null }), "data-page": true }, "Show it as it is now"));
}

function looks(view) {
  const select = h(
    "select",
    {
      "aria-label": "Show values as",
      onchange: () => {
        view.as = select.value;
        sessionStorage.setItem("as", view.as);
        view.redraw?.();
      },
    },
    [["auto", "as they are"], ["text", "text"], ["json", "JSON"], ["hex", "hex"]].map(([value, label]) => h("option", { value, selected: view.as === value }, label)),
  );
  return h("label", {}, "Show ", select);
}

function logForm(view) {
  const now = view.parameters;
  const mode = now.has("key") || now.has("key_base64") ? "key" : now.has("time") ? "time" : now.get("from") === "latest" ? "latest" : now.has("from") ? "offset" : "start";
  const partition = h("select", { "aria-label": "Partition" }, h("option", { value: "" }, "all partitions"), Array.from({ length: view.topic.partitions }, (_, index) => h("option", { value: index, selected: now.get("partition") === String(index) }, `partition ${index}`)));
  const input = h("input", { spellcheck: "false", autocomplete: "off" });
  const kind = h("select", { "aria-label": "Begin at" }, [["start", "from the start"], ["latest", "the newest"], ["offset", "from an offset"], ["time", "from a time"], ["key", "of a key"]].map(([value, label]) => h("option", { value, selected: value === mode }, label)));
  const adjust = () => {
    input.hidden = ["start", "latest"].includes(kind.value);
    input.type = kind.value === "time" ? "datetime-local" : kind.value === "offset" ? "number" : "text";
    if (kind.value === "time") input.step = "1";
    if (kind.value === "offset") input.min = "0";
    input.setAttribute("aria-label", { offset: "Offset", time: "Time (UTC)", key: "Key" }[kind.value] ?? "");
    input.placeholder = kind.value === "key" ? "the whole key" : "";
  };
  kind.addEventListener("change", () => (adjust(), (input.value = ""), input.hidden || input.focus()));
  adjust();
  input.value = mode === "key" ? (now.get("key") ?? "") : mode === "time" ? now.get("time").replace("Z", "") : mode === "offset" ? now.get("from") : "";
  const explain = h("input", { type: "checkbox", checked: wantsReasons(view), onchange: () => go(address(view, { explain: explain.checked ? "1" : "0" }), { replace: true }) });
  const submit = (event) => {
    event.preventDefault();
    const changes = { partition: partition.value, from: null, time: null, key: null, key_base64: null };
    if (kind.value === "latest") changes.from = "latest";
    if (kind.value === "offset") changes.from = input.value || "0";
    if (kind.value === "time" && input.value) changes.time = `${input.value}Z`;
    if (kind.value === "key") changes.key = input.value;
    if (kind.value === "offset" && !changes.partition && view.topic.partitions > 1) changes.partition = "0";
    go(address(view, changes), { replace: true });
  };
  const isPast = now.has("as_of");
  return h(
    "form",
    { class: "toolbar", onsubmit: submit },
    partition,
    !isPast && kind,
    !isPast && input,
    h("button", { class: "primary", type: "submit" }, "Show"),
    h("span", { class: "grow" }),
    looks(view),
    !isPast && h("label", { class: "check" }, explain, "explain"),
  );
}

function stateForm(view) {
  const input = h("input", { type: "search", placeholder: "Keys that have this in them", "aria-label": "Search by key", value: view.parameters.get("search") ?? "" });
  const submit = (event) => {
    event.preventDefault();
    go(address(view, { search: input.value, after: null }), { replace: true });
  };
  return h("form", { class: "toolbar", onsubmit: submit }, input, h("button", { class: "primary", type: "submit" }, "Search"), h("span", { class: "grow" }), looks(view));
}

function wantsReasons(view) {
  const said = view.parameters.get("explain");
  return said === null ? view.topic.records <= 200_000 : said === "1";
}

// -------------------------------------------------------------------------------------------------- loading

async function load(view, state) {
  const { parameters, results, life } = view;
  set(results, h("p", { class: "empty-note" }, "Looking …"));
  try {
    if (state) {
      const found = await get(`/v1/views/topics/${encodeURIComponent(view.name)}/state`, { search: parameters.get("search"), as_of: parameters.get("as_of"), after: parameters.get("after"), max: PAGE }, life.signal);
      return render(view, { records: found.records, says: saysState(found, parameters.get("search")), state, links: pageLinks(view, { newer: parameters.has("after") && { after: null }, older: found.next !== null && { after: found.next } }, ["First page", "Next page"]) });
    }
    if (parameters.has("key") || parameters.has("key_base64")) return byKey(view);
    const found = await get(topicPath(view.name, "/records"), await query(view), life.signal);
    const reasons = parameters.has("as_of") || !wantsReasons(view) ? null : await explanations(view, found.records);
    const more = found.next && found.records.length >= PAGE;
    render(view, { records: found.records, reasons, says: found.records.length ? `${plural(found.records.length, "record")}${more ? ", and there are more" : ""}.` : "No records there.", next: found.next });
  } catch (error) {
    if (error.name !== "AbortError") set(results, h("p", { class: "problem", role: "alert" }, error.message));
  }
}

function saysState(found, search) {
  const shown = found.records.length;
  if (found.matching === null) return `${plural(shown, "key")}, by key. There are too many to count.`;
  const all = search ? `${plural(found.matching, "key")}${found.keys === null ? "" : ` of ${count(found.keys)}`} match` : plural(found.keys, "key");
  return `${all}${found.matching > shown ? `; ${count(shown)} of them on this page, by key` : ""}.`;
}

/** Links to the pages before and behind this one; each is the changes of the address, or nothing. */
function pageLinks(view, { newer, older }, [before, behind]) {
  const link = (changes, text, rel) => changes && h("a", { href: address(view, changes), "data-page": true, rel }, text);
  return (newer || older) && h("p", { class: "links pages" }, link(newer, before, "prev"), link(older, behind, "next"));
}

async function query(view) {
  const { parameters } = view;
  const partition = parameters.get("partition");
  const asked = { partition, max: PAGE, max_bytes: PAGE_BYTES, as_of: parameters.get("as_of"), from_time: parameters.get("time"), from: parameters.get("from") };
  if (asked.from !== "latest") return asked;
  // The newest: the last page before the end.
  const layout = view.topic;
  const chosen = partition === null ? layout.partition_list.reduce((most, each) => (each.log_end > most.log_end ? each : most)) : layout.partition_list[Number(partition)];
  return { ...asked, partition: chosen.partition, from: Math.max(chosen.log_start, chosen.log_end - PAGE) };
}

async function explanations(view, records) {
  const found = new Map();
  const byPartition = new Map();
  for (const each of records) byPartition.set(each.partition, [...(byPartition.get(each.partition) ?? []), each.offset]);
  for (const [partition, offsets] of byPartition) {
    const answer = await get(topicPath(view.name, "/explain"), { partition, from: Math.min(...offsets), limit: offsets.length }, view.life.signal);
    for (const each of answer.partitions.flatMap((one) => one.records)) found.set(`${each.partition}/${each.offset}`, each);
  }
  return found;
}

async function byKey(view) {
  const { parameters } = view;
  const answer = await get(topicPath(view.name, "/explain"), { key: parameters.get("key"), key_base64: parameters.get("key_base64"), partition: parameters.get("partition"), limit: 200 }, view.life.signal);
  const records = answer.partitions.flatMap((each) => each.records);
  render(view, { records, reasons: new Map(records.map((each) => [`${each.partition}/${each.offset}`, each])), says: records.length ? `${plural(records.length, "record")} of this key, the oldest first.` : "There is no record of this key." });
}

// -------------------------------------------------------------------------------------------------- drawing

function render(view, found) {
  const { results } = view;
  view.redraw = () => render(view, found);
  const rows = found.records.map((each) => card(view, each, found.reasons?.get(`${each.partition}/${each.offset}`), found.state));
  set(results, h("p", { class: "soft count" }, found.says), h("ol", { class: "records" }, rows), found.links, found.next && found.records.length >= PAGE && onwards(view, found));
}

function onwards(view, found) {
  // The next page of one partition is a link; of several, one link each that has more.
  const partitions = [...new Set(found.records.map((each) => each.partition))];
  return h("p", { class: "links" }, partitions.map((partition) => h("a", { href: address(view, { partition, from: found.next[partition], time: null }), "data-page": true }, partitions.length > 1 ? `Next of partition ${partition}` : "Next page")));
}

function card(view, record, reason, state) {
  if (state) {
    return h("li", { class: "record in-state" }, keyOf(record), valueOf(view, record), h("div", { class: "where soft" }, h("b", {}, `offset ${count(record.offset)}`), h("span", {}, `partition ${record.partition}`), h("span", {}, time(record.timestamp))));
  }
  const tombstone = isNull(record, "value");
  const place = reason && h("span", { class: `place ${reason.place.kind.replace(" ", "-")}` }, reason.place.kind);
  return h(
    "li",
    { class: `record ${tombstone ? "is-tombstone" : ""} ${reason?.goes ? "goes" : ""}` },
    h("div", { class: "where" }, h("b", {}, count(record.offset)), h("span", { class: "soft" }, `partition ${record.partition}`), h("span", { class: "soft" }, time(record.timestamp))),
    h("div", { class: "what" }, keyOf(record), tombstone ? h("span", { class: "tombstone" }, "tombstone: deletes its key") : valueOf(view, record), headers(record)),
    reason && h("div", { class: "why" }, h("span", { class: `verdict ${reason.goes ? "goes" : "stays"}` }, reason.goes ? "goes" : "stays"), place, h("span", { class: "reason" }, reason.reason)),
  );
}

function keyOf(record) {
  if (isNull(record, "key")) return h("span", { class: "no-key" }, "no key");
  const text = textOf(record, "key");
  return h("span", { class: "key", title: text === null ? "not UTF-8: shown as hex" : null }, text === null && h("span", { class: "tag" }, "hex"), text === "" ? h("i", { class: "soft" }, "empty key") : line(record, "key", 300));
}

function valueOf(view, record) {
  const raw = bytesOf(record, "value");
  const text = textOf(record, "value");
  const size = record.value_bytes ?? raw.length;
  const cut = size > raw.length;
  const long = raw.length > 600;
  const pretty = text !== null && raw.length <= MOST_SHOWN ? prettyJson(text) : null;
  const whole = () => {
    if (view.as === "hex" || text === null) return hex(raw);
    if ((view.as === "json" || (view.as === "auto" && long)) && pretty !== null) return visibleLines(pretty);
    return visibleLines(text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${count(text.length - MOST_SHOWN)} characters more` : text);
  };
  const note = h("span", { class: "soft size" }, text === null ? "not UTF-8, " : "", bytes(size), cut ? ", its beginning" : "");
  if (raw.length === 0) return h("span", { class: "value" }, h("i", { class: "soft" }, "empty value"));
  if (long) {
    const details = h("details", { class: "value" }, h("summary", {}, h("code", {}, line(record, "value", 200)), note));
    details.addEventListener("toggle", () => details.open && details.children.length === 1 && details.append(h("pre", { tabindex: "0" }, whole())));
    return details;
  }
  if (view.as === "hex" || text === null || (view.as === "json" && pretty !== null)) return h("div", { class: "value" }, h("pre", { tabindex: "0" }, whole()), note);
  return h("span", { class: "value" }, h("code", {}, line(record, "value", 600)));
}

function headers(record) {
  if (!record.headers?.length) return null;
  return h("span", { class: "headers" }, record.headers.map((each) => h("span", { class: "header" }, h("b", {}, line({ name: each.key }, "name", 60)), ` ${isNull(each, "value") ? "null" : line(each, "value", 80)}`)));
}
