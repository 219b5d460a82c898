// The scene: a producer, a partition, a consumer's state, and compaction step by step. The log is real, and every frame
// comes from the engine.

import { get, job, send, topicPath } from "./api.js";
import { calm, h, set } from "./dom.js";
import { at, settled } from "./frames.js";
import { count, duration, isNull, line, plural, time } from "./format.js";
import { Player } from "./player.js";

export const title = () => "Scene";

const HUES = [205, 28, 145, 320, 265, 60, 175, 350, 100, 235];

export async function show(main, parameters, life) {
  const scene = new Scene(main, life);
  const topic = parameters.get("topic");
  if (topic) await scene.watchTopic(topic, Number(parameters.get("partition") ?? 0));
  else await scene.beginStory();
}

class Scene {
  constructor(main, life) {
    this.life = life;
    this.hues = new Map();
    this.busy = false;
    this.player = new Player((index) => this.draw(index), life);
    this.build(main);
  }

  // ------------------------------------------------------------------------------------------- the stage

  build(main) {
    this.key = h("input", { id: "scene-key", name: "key", maxlength: 200, placeholder: "alice", autocomplete: "off", spellcheck: "false" });
    this.value = h("input", { id: "scene-value", name: "value", maxlength: 200, placeholder: "Oslo", autocomplete: "off", spellcheck: "false" });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.sendButton = h("button", { class: "quiet", type: "submit" }, "Send");
    this.deleteButton = h("button", { class: "quiet", type: "button", onclick: () => this.produce(true) }, "Delete key");
    this.chapter = h("div", { class: "chapter" });
    this.clock = h("div", { class: "clock" });
    this.segments = h("div", { class: "segments", role: "list", "aria-label": "Segments of the partition, oldest first" });
    this.logHead = h("p", { class: "soft" });
    this.state = h("div", { class: "state" });
    this.says = h("p", { class: "says", "aria-live": "polite" });
    this.code = h("div", { class: "code", "aria-label": "What the engine does" });
    this.run = h("button", { class: "primary", onclick: () => this.compact() }, "Run compaction");
    this.source = h("select", { "aria-label": "What to watch", onchange: () => this.choose() });
    set(
      main,
      h(
        "div",
        { class: "page scene" },
        h("div", { class: "title-row" }, h("h1", {}, "Watch a compaction"), h("label", { class: "source" }, "on ", this.source)),
        this.chapter,
        h(
          "div",
          { class: "stage" },
          h(
            "section",
            { class: "card producer", "aria-label": "Producer" },
            h("h2", {}, "Producer"),
            h("form", { onsubmit: (event) => (event.preventDefault(), this.produce(false)) }, h("label", { for: "scene-key" }, "Key"), this.key, h("label", { for: "scene-value" }, "Value"), this.value, h("div", { class: "buttons" }, this.sendButton, this.deleteButton), this.problem),
            this.clock,
          ),
          h("section", { class: "card log", "aria-label": "The partition" }, h("div", { class: "card-head" }, h("h2", {}, "The log"), this.logHead), this.segments),
          h("section", { class: "card consumer", "aria-label": "The consumer's state" }, h("h2", {}, "Consumer's state"), this.state),
        ),
        h("section", { class: "card engine", "aria-label": "The engine" }, h("div", { class: "transport" }, this.run, this.player.element), this.says, this.code),
      ),
    );
    this.fillSources().catch(() => {});
  }

  async fillSources() {
    const found = await get("/v1/views/overview", {}, this.life.signal);
    const topics = found.topics.filter((each) => each.records <= 500 && each.partitions);
    set(this.source, h("option", { value: "" }, "the story of alice, bob and carol"), topics.flatMap((each) => Array.from({ length: Math.min(each.partitions, 20) }, (_, partition) => h("option", { value: `${partition}/${each.name}` }, each.partitions > 1 ? `topic ${each.name}, partition ${partition}` : `topic ${each.name}`))));
    this.nameSource();
  }

  /** Show at the top what is watched, even if the list came before it or does not have it. */
  nameSource() {
    const value = this.topic ? `${this.topic.partition}/${this.topic.name}` : "";
    if (![...this.source.options].some((each) => each.value === value)) {
      this.source.append(h("option", { value }, this.topic ? `topic ${this.topic.name}, partition ${this.topic.partition}` : "the story of alice, bob and carol"));
    }
    this.source.value = value;
  }

  choose() {
    const [partition, ...name] = this.source.value.split("/");
    const address = this.source.value ? `/scene?topic=${encodeURIComponent(name.join("/"))}&partition=${partition}` : "/scene";
    history.pushState(null, "", address);
    this.guarded(() => (this.source.value ? this.watchTopic(name.join("/"), Number(partition)) : this.beginStory()));
  }

  /** Do one thing at a time, and show its error. */
  async guarded(act) {
    if (this.busy) return;
    this.busy = true;
    this.player.pause();
    set(this.problem);
    for (const each of [this.run, this.sendButton, this.deleteButton]) each.disabled = true;
    try {
      await act();
    } catch (error) {
      if (error.name !== "AbortError") set(this.problem, error.message);
    } finally {
      this.busy = false;
      for (const each of [this.run, this.sendButton, this.deleteButton]) each.disabled = false;
    }
  }

  // ------------------------------------------------------------------------------------------- story or topic

  async beginStory() {
    const begun = await send("POST", "/v1/scene/stories");
    this.topic = null;
    this.story = { id: begun.id, steps: begun.steps, told: 0 };
    this.hues.clear();
    this.forgetRun();
    this.take(begun);
    this.drawChapter();
  }

  async watchTopic(name, partition) {
    const found = await get(topicPath(name, "/scene"), { partition }, this.life.signal);
    this.story = null;
    this.topic = { name, partition };
    this.hues.clear();
    this.forgetRun();
    this.take(found);
    this.drawChapter();
  }

  async produce(isDelete) {
    if (isDelete && !this.key.value) return set(this.problem, "Enter the key to delete.");
    const record = { key: this.key.value === "" ? null : this.key.value, value: isDelete ? null : this.value.value };
    await this.guarded(async () => {
      this.forgetRun();
      if (this.story) this.take(await send("POST", this.storyPath("produce"), record));
      else {
        await send("POST", topicPath(this.topic.name, "/records"), { records: [record], partition: this.topic.partition });
        this.take(await get(topicPath(this.topic.name, "/scene"), { partition: this.topic.partition }, this.life.signal));
      }
      this.value.value = "";
      this.key.focus();
      this.key.select();
    });
  }

  storyPath(act) {
    return `/v1/scene/stories/${this.story.id}/${act}`;
  }

  async compact() {
    await this.guarded(async () => {
      set(this.says, "The engine is working …");
      const answer = this.story ? await send("POST", this.storyPath("compact")) : await job(topicPath(this.topic.name, "/scene/run"), { partition: this.topic.partition }, () => {});
      this.take(answer);
    });
  }

  async advance() {
    await this.guarded(async () => {
      this.forgetRun();
      const told = await send("POST", this.storyPath("advance"));
      this.story.told = told.step;
      this.take(told);
      this.drawChapter();
    });
  }

  async moveClock(forwardMs) {
    await this.guarded(async () => {
      this.forgetRun();
      this.take(await send("POST", this.storyPath("clock"), { forward_ms: forwardMs }));
    });
  }

  /** Show the server's answer: a picture, or a run with its frames. */
  take(answer) {
    if (answer.clock_ahead_ms !== undefined) this.aheadMs = answer.clock_ahead_ms;
    if (answer.run) {
      this.showRun(answer.run);
      return;
    }
    this.picture = answer.picture;
    this.draw();
  }

  showRun(run) {
    this.picture = run.after ?? run.before;
    if (!run.frames.length) {
      this.forgetRun();
      this.draw();
      set(this.says, `There is nothing to do: ${run.not_due ?? "the run changed nothing"}.`);
      return;
    }
    this.shown = run;
    this.drawCode(run.code);
    this.player.load(run.frames);
  }

  forgetRun() {
    this.shown = null;
    this.player.clear();
    set(this.code);
    set(this.says, "");
  }

  // --------------------------------------------------------------------------------------------- drawing

  draw(index = -1) {
    const view = this.shown ? at(this.shown, index) : settled(this.picture);
    const before = calm.matches ? null : this.places();
    this.drawSegments(view);
    this.drawState(view, index);
    this.drawClock(view.picture.now_ms);
    if (this.shown) {
      this.lightLine(view.frame?.line ?? null);
      this.says.setAttribute("aria-live", this.player.playing ? "off" : "polite");
      set(this.says, view.frame ? h("span", { class: `phase ${view.frame.phase}` }, PHASES[view.frame.phase]) : "", view.frame?.text ?? `The run has ${plural(this.shown.frames.length, "step")}.`, view.keysSeen === null ? "" : h("span", { class: "soft" }, ` Keys seen: ${view.keysSeen}.`));
    }
    if (before) this.glide(before);
  }

  drawSegments(view) {
    const records = view.segments.reduce((sum, each) => sum + each.records.length, 0);
    set(this.logHead, `${this.topic ? `${this.topic.name}, partition ${this.topic.partition}` : "topic users, partition 0"} · ${plural(records, "record")}`);
    if (!records) return set(this.segments, h("p", { class: "empty-note" }, "The log is empty. Send a record."));
    set(
      this.segments,
      view.segments.map((segment) =>
        h(
          "div",
          { class: `segment-box ${segment.kind.replace(" ", "-")}`, role: "listitem", "aria-label": `${KINDS[segment.kind]}, ${plural(segment.records.length, "record")}` },
          h("p", { class: "segment-kind" }, KINDS[segment.kind]),
          h("div", { class: "cells", role: "list" }, segment.records.map((record) => this.cell(record, view))),
        ),
      ),
    );
    this.keepInSight(this.segments.querySelector(".current"));
  }

  /** Scroll within the log's own box; the page stays where it is. */
  keepInSight(cell) {
    if (!cell) return;
    const box = this.segments.getBoundingClientRect(), is = cell.getBoundingClientRect();
    if (is.top < box.top) this.segments.scrollTop -= box.top - is.top + 8;
    if (is.bottom > box.bottom) this.segments.scrollTop += is.bottom - box.bottom + 8;
  }

  cell(record, view) {
    const mark = view.marks.get(record.offset);
    const tombstone = isNull(record, "value");
    const noKey = isNull(record, "key");
    const classes = ["cell", mark && `is-${mark}`, tombstone && "is-tombstone", noKey && "is-keyless", view.current === record.offset && "current"].filter(Boolean).join(" ");
    return h(
      "div",
      {
        class: classes,
        role: "listitem",
        "data-offset": record.offset,
        "--hue": noKey ? null : this.hue(record),
        "aria-label": `offset ${record.offset}, ${noKey ? "no key" : `key ${line(record, "key", 40)}`}, ${tombstone ? "tombstone" : line(record, "value", 40)}${mark ? `, ${MARKS[mark]}` : ""}`,
        title: `${record.goes ? "Goes in the next run" : "Stays in the next run"}: ${record.reason}`,
      },
      h("span", { class: "offset" }, count(record.offset), mark && h("span", { class: "mark" }, MARKS[mark])),
      h("span", { class: "cell-key" }, noKey ? "no key" : line(record, "key", 40)),
      h("span", { class: "cell-value" }, tombstone ? "✕ deleted" : line(record, "value", 40) || "(empty)"),
    );
  }

  hue(record) {
    const key = line(record, "key", 300);
    if (!this.hues.has(key)) this.hues.set(key, this.hues.size < HUES.length ? HUES[this.hues.size] : (this.hues.size * 137.5) % 360);
    return this.hues.get(key);
  }

  drawState(view, index) {
    const rows = view.state.slice(0, 100).map((each) => h("tr", { "--hue": this.hue(each) }, h("th", { scope: "row" }, h("span", { class: "pill" }, line(each, "key", 40))), h("td", {}, line(each, "value", 60) || "(empty)")));
    const done = this.shown?.after && index === this.shown.frames.length - 1;
    set(
      this.state,
      rows.length ? h("table", {}, h("tbody", {}, rows)) : h("p", { class: "empty-note" }, "Nothing yet."),
      h("p", { class: "soft" }, plural(view.state.length, "key")),
      done && h("p", { class: "equal" }, same(this.shown.before.state, this.shown.after.state) ? "✓ The same as before the run." : "Not the same as before the run!"),
    );
  }

  drawClock(nowMs) {
    if (!this.story) return set(this.clock, h("p", { class: "soft" }, "The clock of a real topic can't be moved; the story's can."));
    const step = (label, ms) => h("button", { class: "quiet small", type: "button", onclick: () => this.moveClock(ms) }, label);
    set(this.clock, h("h3", {}, "Clock"), h("p", { class: "now" }, time(nowMs).slice(0, 19)), h("p", { class: "soft" }, this.aheadMs ? `${duration(this.aheadMs)} ahead of real time` : "real time"), h("div", { class: "buttons" }, step("+10 min", 600_000), step("+1 h", 3_600_000), step("+1 day", 86_400_000)));
  }

  drawChapter() {
    this.nameSource();
    const story = this.story;
    // Only one button at a time is highlighted.
    this.run.className = story && story.told < story.steps.length ? "quiet" : "primary";
    if (!story) return set(this.chapter, h("p", { class: "lead" }, "A real topic of this server. The records you send are appended to it, and a run really compacts it."));
    const now = story.steps[story.told - 1];
    const next = story.steps[story.told];
    set(
      this.chapter,
      h("ol", { class: "steps", "aria-label": "Steps of the story" }, story.steps.map((each, index) => h("li", { class: index < story.told ? "told" : "", "aria-current": index === story.told - 1 ? "step" : null, title: each.title }, h("span", { class: "step-title" }, each.title)))),
      h(
        "div",
        { class: "chapter-text" },
        h("p", { class: "lead" }, now ? now.text : "A topic with one partition, compacted by key, on its own log. Follow the story step by step, or send any records you like."),
        h("div", { class: "buttons" }, next ? h("button", { class: "primary next", onclick: () => this.advance() }, `${story.told ? "Next" : "Begin"}: ${next.title}`) : h("span", { class: "soft" }, "The story is over; continue as you like."), story.told > 0 && h("button", { class: "text", onclick: () => this.guarded(() => this.beginStory()) }, "Start over")),
      ),
    );
  }

  // ------------------------------------------------------------------------------------------------- code

  drawCode(listing) {
    set(this.code, listing.map((part) => h("div", { class: "function" }, h("p", { class: "function-title" }, part.title), h("pre", {}, part.lines.map((each) => h("code", { "data-line": each.id }, each.code, "\n"))))));
  }

  lightLine(id) {
    for (const each of this.code.querySelectorAll("code")) {
      const lit = each.dataset.line === id;
      each.classList.toggle("lit", lit);
      lit ? each.setAttribute("aria-current", "true") : each.removeAttribute("aria-current");
    }
    for (const each of this.code.querySelectorAll(".function")) each.classList.toggle("at-work", each.querySelector(".lit") !== null);
  }

  // ----------------------------------------------------------------------------------------------- motion

  places() {
    return new Map([...this.segments.querySelectorAll("[data-offset]")].map((each) => [each.dataset.offset, each.getBoundingClientRect()]));
  }

  /** Cells that have moved glide to their new place; new ones fade in. */
  glide(before) {
    for (const each of this.segments.querySelectorAll("[data-offset]")) {
      const was = before.get(each.dataset.offset);
      const is = each.getBoundingClientRect();
      if (!was) each.animate([{ opacity: 0, transform: "translateY(6px)" }, { opacity: 1, transform: "none" }], { duration: 240, easing: "ease-out" });
      else if (was.left !== is.left || was.top !== is.top) each.animate([{ transform: `translate(${was.left - is.left}px, ${was.top - is.top}px)` }, { transform: "none" }], { duration: 300, easing: "ease-in-out" });
    }
  }
}

const KINDS = { "wal active": "active WAL file", "wal rolled": "WAL file", "sealed clean": "sealed segment, clean", "sealed dirty": "sealed segment, dirty", "being written": "new segment" };
const MARKS = { wins: "wins", beaten: "beaten", alone: "no rival", goes: "goes", stays: "stays" };
const PHASES = { seal: "Seal", find: "Find the winners", decide: "Decide", rewrite: "Rewrite", commit: "Commit", later: "Later" };

function same(left, right) {
  const words = (state) => JSON.stringify(state.map((each) => [each.key ?? each.key_base64, each.value ?? each.value_base64]).sort());
  return words(left) === words(right);
}
