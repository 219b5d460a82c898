// One partition drawn to scale along its offsets: sealed segments above, WAL files below them, readers over both.
// With the keyboard: the arrow keys move from part to part, and the text below the drawing describes the part.

import { ago, bytes, count, percent, plural } from "./format.js";
import { h, set, svg } from "./dom.js";

const TOP = 14, SEALED = 26, GAP = 3, WAL = 8;
const HEIGHT = TOP + SEALED + GAP + WAL;

/** The offsets that all partitions of a topic span, so that their drawings can be compared. */
export function scaleOf(partitions) {
  const start = Math.min(...partitions.map((each) => Math.min(each.log_start, each.segments[0]?.[0] ?? Infinity)));
  const end = Math.max(...partitions.map((each) => each.log_end));
  return { start, span: Math.max(1, end - start) };
}

export function strip(partition, scale, nowMs) {
  const place = (offset) => `${(((offset - scale.start) / scale.span) * 100).toFixed(4)}%`;
  const width = (from, to) => `${(((to - from) / scale.span) * 100).toFixed(4)}%`;
  const parts = [];
  const says = h("p", { class: "says", "aria-live": "polite" });
  const add = (element, text) => {
    const index = parts.length;
    parts.push({ element, text });
    element.addEventListener("pointerenter", () => point(index));
    return element;
  };
  let at = -1;
  const point = (index) => {
    parts[at]?.element.classList.remove("pointed");
    at = index;
    parts[at]?.element.classList.add("pointed");
    set(says, parts[at]?.text ?? "");
  };

  const drawing = svg("svg", {
    class: "strip",
    height: HEIGHT,
    width: "100%",
    role: "img",
    tabindex: "0",
    "aria-label": summary(partition),
  });
  drawing.append(svg("line", { class: "axis", x1: place(Math.max(partition.log_start, scale.start)), x2: place(partition.log_end), y1: TOP + SEALED + 1.5, y2: TOP + SEALED + 1.5 }));
  for (const [first, last, records, size, dirty, garbage, segments] of partition.segments) {
    const share = garbage === null || !records ? 0 : garbage / records;
    const group = svg("g", { class: `segment ${dirty ? "dirty" : "clean"}` }, svg("rect", { class: "body", x: place(first), width: width(first, last + 1), y: TOP, height: SEALED }));
    if (share > 0) group.append(svg("rect", { class: "garbage", x: place(first), width: width(first, last + 1), y: TOP + SEALED * (1 - share), height: SEALED * share }));
    const kept = records / (last + 1 - first);
    drawing.append(
      add(
        group,
        `${segments > 1 ? plural(segments, "segment") : "Segment"}, offsets ${count(first)} to ${count(last)} · ${dirty ? "dirty" : "clean"} · ${plural(records, "record")}` +
          `${kept < 0.995 ? ` (${percent(kept)} of its offsets)` : ""} · ${bytes(size)}${garbage === null ? "" : ` · about ${percent(share)} garbage`}`,
      ),
    );
  }
  for (const file of partition.wal) {
    const empty = file.end_offset === file.first_offset;
    if (empty && !file.active) continue;
    const bar = svg("rect", { class: `wal ${file.active ? "active" : ""}`, x: place(file.first_offset), width: empty ? "3" : width(file.first_offset, file.end_offset), y: TOP + SEALED + GAP, height: WAL, rx: 1.5 });
    drawing.append(
      add(
        bar,
        `${file.active ? "Active WAL file" : "WAL file"}, ${empty ? `empty, next offset ${count(file.first_offset)}` : `offsets ${count(file.first_offset)} to ${count(file.end_offset - 1)}`} · ${bytes(file.size_bytes)}` +
          (file.active ? "" : file.end_offset <= partition.sealed_end ? " · sealed, still on the local disk" : " · waiting to be sealed"),
      ),
    );
  }
  for (const reader of partition.readers) {
    const behind = Math.max(0, partition.log_end - reader.position);
    const mark = svg(
      "g",
      { class: `reader ${reader.kind}` },
      svg("line", { x1: place(reader.position), x2: place(reader.position), y1: 8, y2: HEIGHT }),
      svg("circle", { cx: place(reader.position), cy: 6, r: 4 }),
    );
    drawing.append(add(mark, `${reader.kind === "group" ? "Group" : "Reader"} ${reader.name} is at ${count(reader.position)}, ${behind ? `${plural(behind, "offset")} behind` : "at the end"} · seen ${ago(reader.active_ms, nowMs)}`));
  }
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !parts.length) return;
    event.preventDefault();
    point((at + step + parts.length) % parts.length);
  });
  drawing.addEventListener("pointerleave", () => point(-1));
  return h(
    "div",
    { class: "partition" },
    h("div", { class: "partition-head" }, h("b", {}, `Partition ${partition.partition}`), h("span", { class: "soft" }, positions(partition))),
    drawing,
    says,
  );
}

function positions(partition) {
  const parts = [`offsets ${count(partition.log_start)} to ${count(partition.log_end)}`];
  if (partition.first_dirty > partition.log_start) parts.push(`compacted below ${count(partition.first_dirty)}`);
  if (partition.log_end > partition.sealed_end) parts.push(`${count(partition.log_end - Math.max(partition.sealed_end, partition.log_start))} only in the WAL`);
  return parts.join(" · ");
}

function summary(partition) {
  const dirty = partition.segments.reduce((sum, each) => sum + (each[4] ? each[6] : 0), 0);
  return (
    `Partition ${partition.partition}: ${positions(partition)}. ${plural(partition.segment_count, "sealed segment")}, ${dirty} of them dirty; ` +
    `${plural(partition.wal.length, "WAL file")}; ${plural(partition.readers.length, "reader")}. The arrow keys move through the parts.`
  );
}

export function legend() {
  const entry = (kind, text) => h("span", { class: "entry" }, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text);
  return h(
    "div",
    { class: "legend" },
    entry("clean", "clean"),
    entry("dirty", "dirty"),
    entry("garbage", "garbage"),
    entry("wal", "WAL file"),
    entry("active", "active file"),
    entry("reader", "reader or group"),
  );
}
