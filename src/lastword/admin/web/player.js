// Play, pause, step forward and back, speed: the position within a run's frames. Space and the arrow keys work, too.

import { calm, h, set, svg } from "./dom.js";

const FRAME_MS = 900;

/** Icons drawn by hand: fonts have them in different sizes, or not at all. */
const SIGNS = { first: "M3 3h2v10H3zM13 3v10L6 8z", back: "M11 3v10L4 8z", play: "M4 2.5v11L13 8z", pause: "M4 3h3v10H4zM9 3h3v10H9z", forth: "M5 3v10l7-5z", last: "M11 3h2v10h-2zM3 3v10l7-5z" };
const sign = (name) => svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, svg("path", { d: SIGNS[name] }));

export class Player {
  constructor(show, life) {
    this.show = show;
    this.index = -1;
    this.count = 0;
    this.timer = null;
    const button = (label, text, act) => h("button", { class: "icon", type: "button", "aria-label": label, title: label, onclick: act }, text);
    this.first = button("To the start", sign("first"), () => this.jump(-1));
    this.back = button("One step back", sign("back"), () => this.jump(this.index - 1));
    this.toggle = button("Play", sign("play"), () => (this.playing ? this.pause() : this.play()));
    this.forth = button("One step forward", sign("forth"), () => this.jump(this.index + 1));
    this.last = button("To the end", sign("last"), () => this.jump(this.count - 1));
    this.slider = h("input", { type: "range", min: -1, max: 0, value: -1, "aria-label": "Step of the run", oninput: () => this.jump(Number(this.slider.value)) });
    this.where = h("span", { class: "where soft" });
    this.speed = h("select", { "aria-label": "Speed" }, [["0.5", "½×"], ["1", "1×"], ["2", "2×"], ["5", "5×"]].map(([value, label]) => h("option", { value, selected: value === "1" }, label)));
    this.element = h("div", { class: "player", role: "group", "aria-label": "Playback" }, this.first, this.back, this.toggle, this.forth, this.last, this.slider, this.where, this.speed);
    this.clear();
    life.on(document, "keydown", (event) => this.key(event));
    life.signal.addEventListener("abort", () => this.pause());
  }

  get playing() {
    return this.timer !== null;
  }

  load(frames) {
    this.count = frames.length;
    this.index = -1;
    this.slider.max = this.count - 1;
    this.element.hidden = false;
    this.enable();
    this.jump(-1);
    if (!calm.matches) this.play();
  }

  clear() {
    this.pause();
    this.count = 0;
    this.index = -1;
    this.element.hidden = true;
  }

  play() {
    if (!this.count) return;
    if (this.index >= this.count - 1) this.index = -1;
    const next = () => {
      if (this.index >= this.count - 1) return this.pause();
      this.timer = setTimeout(() => {
        this.move(this.index + 1);
        next();
      }, FRAME_MS / Number(this.speed.value));
    };
    next();
    this.label();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.label();
  }

  jump(index) {
    this.pause();
    this.move(index);
  }

  move(index) {
    if (!this.count) return;
    this.index = Math.max(-1, Math.min(this.count - 1, index));
    this.slider.value = this.index;
    set(this.where, `${this.index + 1} of ${this.count}`);
    this.enable();
    this.show(this.index);
  }

  enable() {
    this.first.disabled = this.back.disabled = this.index < 0;
    this.forth.disabled = this.last.disabled = this.index >= this.count - 1;
  }

  label() {
    const says = this.playing ? "Pause" : "Play";
    set(this.toggle, sign(this.playing ? "pause" : "play"));
    this.toggle.setAttribute("aria-label", says);
    this.toggle.title = says;
  }

  key(event) {
    if (!this.count || event.target.closest("input, select, textarea, svg") || event.metaKey || event.ctrlKey || event.altKey) return;
    const act = { ArrowRight: () => this.jump(this.index + 1), ArrowLeft: () => this.jump(this.index - 1), " ": () => (this.playing ? this.pause() : this.play()) }[event.key];
    if (!act || (event.key === " " && event.target.closest("button, a, summary"))) return;
    event.preventDefault();
    act();
  }
}
