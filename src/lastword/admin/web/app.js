// Chooses the page, and has the parts that all pages share: the bar, the banner when the server is away, titles and focus.

import { onConnection, Problem, send, Unreachable } from "./api.js";
import { h, set } from "./dom.js";
import * as live from "./live.js";
import * as overview from "./overview.js";
import * as records from "./records.js";
import * as scene from "./scene.js";
import * as topic from "./topic.js";

const PAGES = { "/": overview, "/topic": topic, "/records": records, "/live": live, "/scene": scene };
const main = document.getElementById("main");
const banner = document.getElementById("banner");

/** The lifetime of a page: it ends when another page is shown. */
class Life {
  constructor() {
    this.controller = new AbortController();
    this.signal = this.controller.signal;
  }

  get over() {
    return this.signal.aborted;
  }

  /** Do something now and then repeatedly, while the page is visible. The first time is awaited. */
  async every(ms, act) {
    const turn = async () => {
      try {
        await act();
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof Unreachable)) throw error;
      }
    };
    await turn();
    const again = async () => {
      if (this.over) return;
      if (!document.hidden) await turn().catch(show);
      if (!this.over) setTimeout(again, ms);
    };
    setTimeout(again, ms);
  }

  on(target, event, listener) {
    target.addEventListener(event, listener, { signal: this.signal });
  }
}

let life = new Life();

function show(error) {
  if (error.name === "AbortError") return;
  set(
    main,
    h("div", { class: "notice bad", role: "alert" }, h("h1", {}, error instanceof Problem ? "The request failed" : "This page has failed"), h("p", {}, error.message)),
  );
}

async function open() {
  life.controller.abort();
  life = new Life();
  const own = life;
  const page = PAGES[location.pathname] ?? overview;
  for (const link of document.querySelectorAll("nav a")) {
    const here = new URL(link.href).pathname === location.pathname || (page === topic && new URL(link.href).pathname === "/");
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  const parameters = new URLSearchParams(location.search);
  document.title = `${page.title(parameters)} · Lastword`;
  set(main);
  try {
    await page.show(main, parameters, own);
  } catch (error) {
    if (!own.over) {
      if (error instanceof Unreachable) set(main, h("p", { class: "empty" }, "This page will be shown as soon as the server answers."));
      else show(error);
    }
  }
}

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  open();
  if (!replace) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-page]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.href);
});
addEventListener("popstate", open);

let wasAway = false;
onConnection((answers) => {
  banner.hidden = answers;
  set(banner, answers ? "" : "The server does not answer. This page continues as soon as it does.");
  if (!answers) {
    wasAway = true;
    const knock = async () => {
      if (!banner.hidden) {
        await fetch("/healthz").then(() => wasAway && back(), () => {});
        setTimeout(knock, 1000);
      }
    };
    setTimeout(knock, 1000);
  }
});

function back() {
  wasAway = false;
  banner.hidden = true;
  set(banner, "");
  if (main.querySelector(".empty, .notice.bad") || !main.hasChildNodes()) open();
}

const logout = document.getElementById("logout");
logout.addEventListener("click", async () => {
  await send("POST", "/logout");
  location.assign("/login");
});
fetch("/v1/session").then(async (answer) => answer.ok && (logout.hidden = !(await answer.json()).by_cookie)).catch(() => {});

open();
