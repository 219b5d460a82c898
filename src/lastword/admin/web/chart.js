// A small chart over time, without a library: some lines, an axis with three numbers, and the newest value as text.

import { h, set, svg } from "./dom.js";

const WIDTH = 600, HEIGHT = 130;

export class Chart {
  /** `lines` are the names of the series; `show` formats a number. */
  constructor(title, lines, show, hint = "") {
    this.lines = lines;
    this.show = show;
    this.now = h("p", { class: "chart-now" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img", "aria-label": title });
    this.top = h("span", {});
    this.title = title;
    this.element = h("section", { class: "card chart-card", "aria-label": title }, h("div", { class: "chart-head" }, h("h2", {}, title), this.now), h("div", { class: "chart-place" }, this.top, this.drawing), h("div", { class: "chart-foot" }, this.begin = h("span", {}), h("span", { class: "soft" }, hint), h("span", {}, "now")));
  }

  /** `points` are {at, values: [one per line, or null]}; `end` and `spanMs` are the time range of the width. */
  draw(points, end, spanMs) {
    const most = Math.max(1e-9, ...points.flatMap((each) => each.values.filter((value) => value !== null)));
    const top = nice(most);
    const x = (at) => WIDTH - ((end - at) / spanMs) * WIDTH;
    const y = (value) => HEIGHT - (value / top) * (HEIGHT - 6) - 1;
    const children = [0.5, 1].map((share) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(top * share), y2: y(top * share) }));
    this.lines.forEach((_, index) => {
      const path = [];
      let drawing = false;
      for (const point of points) {
        const value = point.values[index];
        if (value === null || point.at < end - spanMs) {
          drawing = false;
          continue;
        }
        path.push(`${drawing ? "L" : "M"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`);
        drawing = true;
      }
      children.push(svg("path", { class: `line line-${index}`, d: path.join("") || "M0 0" }));
    });
    set(this.drawing, children);
    set(this.top, most > 1e-6 ? this.show(top) : "");
    set(this.begin, spanMs >= 60_000 ? `${Math.round(spanMs / 60_000)} min ago` : "");
    const last = points.at(-1)?.values ?? [];
    set(this.now, this.lines.map((name, index) => h("span", { class: `key-${index}` }, h("span", { class: "swatch-line", "aria-hidden": "true" }), name && `${name} `, h("b", {}, last[index] === null || last[index] === undefined ? "–" : this.show(last[index])))));
    this.drawing.setAttribute("aria-label", `${this.title}: ${this.lines.map((name, index) => `${name} ${last[index] === null || last[index] === undefined ? "unknown" : this.show(last[index])}`).join(", ")}`);
  }
}

function nice(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= most);
}
