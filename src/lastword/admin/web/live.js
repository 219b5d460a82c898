// Live rates, latencies and sizes from /metrics, requested every two seconds.

import { getText } from "./api.js";
import { Chart } from "./chart.js";
import { h, set } from "./dom.js";
import { bytes, count, duration, percent } from "./format.js";

const EVERY_MS = 2000;
const SPAN_MS = 300_000;

export const title = () => "Live";

const rate = (value) => `${value < 10 ? Math.round(value * 10) / 10 : count(Math.round(value))}/s`;
const byteRate = (value) => `${bytes(value)}/s`;
const seconds = (value) => (value < 0.001 ? `${(value * 1e6).toFixed(0)} µs` : value < 0.01 ? `${(value * 1000).toFixed(1)} ms` : duration(value * 1000));

export async function show(main, parameters, life) {
  const charts = [
    [new Chart("Records produced", [""], rate), (now, before) => [between(now, before, "lastword_append_records_total")]],
    [new Chart("Bytes", ["produced", "fetched"], byteRate), (now, before) => [between(now, before, "lastword_append_bytes_total"), between(now, before, "lastword_fetch_bytes_total")]],
    [new Chart("Produce latency", ["median", "99th percentile"], seconds), (now, before) => [quantile(now, before, "Produce", 0.5), quantile(now, before, "Produce", 0.99)]],
    [new Chart("Fetch latency", ["median", "99th percentile"], seconds, "a fetch may wait for records"), (now, before) => [quantile(now, before, "Fetch", 0.5), quantile(now, before, "Fetch", 0.99)]],
    [new Chart("WAL on the local disk", [""], bytes), (now) => [sum(now, "lastword_wal_bytes")]],
    [new Chart("Dirty ratio", ["highest", "mean"], percent, "as last measured by the worker"), (now) => ratios(now)],
    [new Chart("Sealed", [""], byteRate), (now, before) => [between(now, before, "lastword_tiering_bytes_sealed_total")]],
    [new Chart("Reclaimed by compaction", [""], byteRate), (now, before) => [between(now, before, "lastword_log_cleaner_cleaned_bytes_total")]],
  ];
  const series = charts.map(() => []);
  const facts = h("dl", { class: "totals" });
  set(main, h("div", { class: "page wide" }, h("h1", {}, "Live"), facts, h("div", { class: "charts" }, charts.map(([chart]) => chart.element))));
  let before = null;
  await life.every(EVERY_MS, async () => {
    const now = parse(await getText("/metrics", life.signal));
    now.at = Date.now();
    charts.forEach(([chart, read], index) => {
      const points = series[index];
      points.push({ at: now.at, values: read(now, before).map((value) => (Number.isFinite(value) ? value : null)) });
      while (points.length && points[0].at < now.at - SPAN_MS) points.shift();
      chart.draw(points, now.at, Math.min(SPAN_MS, Math.max(60_000, Math.ceil((now.at - points[0].at) / 60_000) * 60_000)));
    });
    set(facts, [["Connections", count(sum(now, "lastword_kafka_connections"))], ["Requests answered", count(sum(now, "lastword_kafka_requests_total"))], ["Error responses", count(sum(now, "lastword_kafka_errors_total"))], ["Compactions", count(sum(now, "lastword_log_cleaner_compactions_total"))]].map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))));
    before = now;
  });
}

/** Parse Prometheus' text format: the samples of each name, as {labels, value}. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const brace = line.indexOf("{");
    const end = line.lastIndexOf(" ");
    const name = line.slice(0, brace < 0 ? end : brace);
    if (!name.startsWith("lastword_")) continue;
    const samples = found.get(name) ?? [];
    samples.push({ labels: brace < 0 ? "" : line.slice(brace + 1, end), value: Number(line.slice(end + 1)) });
    found.set(name, samples);
  }
  return found;
}

const sum = (metrics, name) => (metrics.get(name) ?? []).reduce((total, each) => total + each.value, 0);

function between(now, before, name) {
  if (before === null) return null;
  const grown = sum(now, name) - sum(before, name);
  // Less than before: the process was restarted.
  return grown < 0 ? null : grown / ((now.at - before.at) / 1000);
}

function ratios(now) {
  const values = (now.get("lastword_log_cleaner_dirty_ratio") ?? []).map((each) => each.value);
  return values.length ? [Math.max(...values), values.reduce((total, each) => total + each, 0) / values.length] : [null, null];
}

/** A quantile from the buckets of a histogram, of the requests between two scrapes. */
function quantile(now, before, api, share) {
  if (before === null) return null;
  const name = "lastword_kafka_request_duration_seconds_bucket";
  const buckets = (metrics) => new Map((metrics.get(name) ?? []).filter((each) => each.labels.includes(`api="${api}"`)).map((each) => [Number(/le="([^"]+)"/.exec(each.labels)[1].replace("+Inf", "Infinity")), each.value]));
  const old = buckets(before);
  const counts = [...buckets(now)].map(([limit, value]) => [limit, value - (old.get(limit) ?? 0)]).sort((left, right) => left[0] - right[0]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let lower = 0, below = 0;
  for (const [limit, value] of counts) {
    if (value >= share * total) return limit === Infinity ? lower : lower + (limit - lower) * ((share * total - below) / Math.max(1, value - below));
    [lower, below] = [limit, value];
  }
  return null;
}
