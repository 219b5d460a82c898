// Records of a topic, newest first, by offset, time or key, and its state; optionally with why each one stays or goes.

import { get, topicPath } from "./api.js";
import { go } from "./app.js";
import { h, set } from "./dom.js";
import { bytes, bytesOf, count, hex, isNull, line, plural, prettyJson, textOf, time, visibleLines } from "./format.js";

const PAGE = 50;
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
  set(main, h("div", { class: "page" }, h("h1", {}, "Records"), missing && h("p", { class: "problem", role: "alert" }, `There is no topic “${missing}”.`), known.length ? h("div", { class: "toolbar" }, select) : h("p", { class: "empty-note" }, "There are no topics yet.")));
}

const address = (view, changes) => {
  const parameters = new URLSearchParams(view.parameters);
  for (const [name, value] of Object.entries(changes)) value === null || value === "" ? parameters.delete(name) : parameters.set(name, value);
  return `/records?${parameters}`;
};

function tabs(view, state) {
  const clear = { view: null, at: null, key: null, key_base64: null, search: null, after: null };
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
  const [at, rest] = split(now.get("at"));
  const mode = now.has("key") || now.has("key_base64") ? "key" : ["oldest", "offset", "time"].includes(at) ? at : "newest";
  const partition = h("select", { "aria-label": "Partition" }, h("option", { value: "" }, "all partitions"), Array.from({ length: view.topic.partitions }, (_, index) => h("option", { value: index, selected: now.get("partition") === String(index) }, `partition ${index}`)));
  const input = h("input", { spellcheck: "false", autocomplete: "off" });
  const kind = h("select", { "aria-label": "Begin at" }, [["newest", "the newest"], ["oldest", "the oldest"], ["offset", "up to an offset"], ["time", "up to a time"], ["key", "of a key"]].map(([value, label]) => h("option", { value, selected: value === mode }, label)));
  const adjust = () => {
    input.hidden = ["newest", "oldest"].includes(kind.value);
    input.type = kind.value === "time" ? "datetime-local" : kind.value === "offset" ? "number" : "text";
    if (kind.value === "time") input.step = "1";
    if (kind.value === "offset") input.min = "0";
    input.setAttribute("aria-label", { offset: "Offset", time: "Time (UTC)", key: "Key" }[kind.value] ?? "");
    input.placeholder = kind.value === "key" ? "the exact key" : "";
  };
  kind.addEventListener("change", () => (adjust(), (input.value = ""), input.hidden || input.focus()));
  adjust();
  input.value = mode === "key" ? (now.get("key") ?? "") : mode === "time" ? rest.replace("Z", "") : mode === "offset" ? rest : "";
  const explain = h("input", { type: "checkbox", checked: wantsReasons(view), onchange: () => go(address(view, { explain: explain.checked ? "1" : "0" }), { replace: true }) });
  const submit = (event) => {
    event.preventDefault();
    const changes = { partition: partition.value, at: null, key: null, key_base64: null };
    if (kind.value === "oldest") changes.at = "oldest";
    if (kind.value === "offset") changes.at = `offset:${input.value || "0"}`;
    if (kind.value === "time" && input.value) changes.at = `time:${input.value}Z`;
    if (kind.value === "key") changes.key = input.value;
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

function split(at) {
  const colon = (at ?? "").indexOf(":");
  return colon < 0 ? [at ?? "newest", ""] : [at.slice(0, colon), at.slice(colon + 1)];
}

function stateForm(view) {
  const input = h("input", { type: "search", placeholder: "Keys that contain this", "aria-label": "Search by key", value: view.parameters.get("search") ?? "" });
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
  set(results, h("p", { class: "empty-note" }, "Loading …"));
  try {
    if (state) {
      const found = await get(`/v1/views/topics/${encodeURIComponent(view.name)}/state`, { search: parameters.get("search"), as_of: parameters.get("as_of"), after: parameters.get("after"), max: PAGE }, life.signal);
      return render(view, { records: found.records, says: saysState(found, parameters.get("search")), state, links: pageLinks(view, { newer: parameters.has("after") && { after: null }, older: found.next !== null && { after: found.next } }, ["First page", "Next page"]) });
    }
    const asked = { key: parameters.get("key"), key_base64: parameters.get("key_base64"), partition: parameters.get("partition") };
    const page = await get(`/v1/views/topics/${encodeURIComponent(view.name)}/records`, { ...asked, as_of: parameters.get("as_of"), at: parameters.get("at"), max: PAGE }, life.signal);
    const found = { records: page.records, says: saysRecords(page, asked.key !== null || asked.key_base64 !== null), links: recordLinks(view, page) };
    render(view, found);
    if (!parameters.has("as_of") && wantsReasons(view) && page.records.length) await explain(view, found, asked);
  } catch (error) {
    if (error.name !== "AbortError") set(results, h("p", { class: "problem", role: "alert" }, error.message));
  }
}

function saysState(found, search) {
  const shown = found.records.length;
  if (found.matching === null) return `${plural(shown, "key")}, ordered by key. There are too many to count.`;
  const all = search ? `${plural(found.matching, "key")}${found.keys === null ? "" : ` of ${count(found.keys)}`} match` : plural(found.keys, "key");
  return `${all}${found.matching > shown ? `; ${count(shown)} of them on this page, ordered by key` : ""}.`;
}

/** Links to the pages before and after this one; each is a set of changes to the address, or nothing. */
function pageLinks(view, { newer, older }, [before, behind]) {
  const link = (changes, text, rel) => changes && h("a", { href: address(view, changes), "data-page": true, rel }, text);
  if (!newer && !older) return null;
  return h("p", { class: "links pages" }, link(newer, before, "prev"), link(older, behind, "next"));
}

function saysRecords({ total, newer, records }, ofKey) {
  const shown = records.length;
  if (total === null) return `${plural(shown, "record")} on this page, newest first. The others can't be counted because of damage.`;
  if (total === 0) return ofKey ? "There is no record of this key." : "There are no records.";
  const whole = `${plural(total, "record")}${ofKey ? " of this key" : ""}`;
  if (shown === 0) return `None of the ${whole} is that old.`;
  if (shown === total) return `${whole}, newest first.`;
  return `Records ${count(newer + 1)} to ${count(newer + shown)} of ${count(total)}${ofKey ? " of this key" : ""}, newest first.`;
}

function recordLinks(view, { previous, next }) {
  const link = (at, text, rel) => h("a", { href: address(view, { at }), "data-page": true, rel }, text);
  if (previous === null && next === null) return null;
  return h("p", { class: "links pages" }, previous !== null && [link(null, "Newest"), link(previous, "Newer", "prev")], next !== null && [link(next, "Older", "next"), link("oldest", "Oldest")]);
}

/** Add the reasons why records stay or go to records that are already shown. If that fails, they stay without. */
async function explain(view, found, asked) {
  const byPartition = new Map();
  for (const each of found.records) byPartition.set(each.partition, [...(byPartition.get(each.partition) ?? []), each.offset]);
  found.reasons = new Map();
  try {
    for (const [partition, offsets] of byPartition) {
      // The records of a page are neighbours in their partition, or among those of their key.
      const answer = await get(topicPath(view.name, "/explain"), { ...asked, partition, from: Math.min(...offsets), limit: offsets.length }, view.life.signal);
      for (const each of answer.partitions.flatMap((one) => one.records)) found.reasons.set(`${each.partition}/${each.offset}`, each);
      for (const row of view.results.querySelectorAll("li[data-where]")) giveReason(row, found.reasons.get(row.dataset.where));
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    found.unexplained = `Why records stay or go is not available now: ${error.message}`;
    view.results.querySelector(".count").after(h("p", { class: "notice", role: "status" }, found.unexplained));
  }
}

// -------------------------------------------------------------------------------------------------- drawing

function render(view, found) {
  const { results } = view;
  view.redraw = () => render(view, found);
  const rows = found.records.map((each) => card(view, each, found.reasons?.get(`${each.partition}/${each.offset}`), found.state));
  set(results, h("p", { class: "soft count" }, found.says), found.unexplained && h("p", { class: "notice", role: "status" }, found.unexplained), found.links, h("ol", { class: "records" }, rows), found.links?.cloneNode(true));
}

function card(view, record, reason, state) {
  if (state) {
    return h("li", { class: "record in-state" }, keyOf(record), valueOf(view, record), h("div", { class: "where soft" }, h("b", {}, `offset ${count(record.offset)}`), h("span", {}, `partition ${record.partition}`), h("span", {}, time(record.timestamp))));
  }
  const tombstone = isNull(record, "value");
  const row = h(
    "li",
    { class: `record ${tombstone ? "is-tombstone" : ""}`, "data-where": `${record.partition}/${record.offset}` },
    h("div", { class: "where" }, h("b", {}, count(record.offset)), h("span", { class: "soft" }, `partition ${record.partition}`), h("span", { class: "soft" }, time(record.timestamp))),
    h("div", { class: "what" }, keyOf(record), tombstone ? h("span", { class: "tombstone" }, "tombstone: deletes its key") : valueOf(view, record), headers(record)),
  );
  giveReason(row, reason);
  return row;
}

function giveReason(row, reason) {
  if (!reason || row.querySelector(".why")) return;
  row.classList.toggle("goes", reason.goes);
  row.append(h("div", { class: "why" }, h("span", { class: `verdict ${reason.goes ? "goes" : "stays"}` }, reason.goes ? "goes" : "stays"), h("span", { class: `place ${reason.place.kind.replace(" ", "-")}` }, reason.place.kind), h("span", { class: "reason" }, reason.reason)));
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
    return visibleLines(text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${count(text.length - MOST_SHOWN)} more characters` : text);
  };
  const note = h("span", { class: "soft size" }, text === null ? "not UTF-8, " : "", bytes(size), cut ? ", only the beginning" : "");
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
