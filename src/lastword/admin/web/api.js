// Requests to the server. An error has the server's own message; no answer is a different error from a refusal.

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export class Unreachable extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

const listeners = new Set();
let answers = true;

/** Call a listener when the server stops answering (false) and when it answers again (true). */
export const onConnection = (listener) => listeners.add(listener);

function heard(now) {
  if (now === answers) return;
  answers = now;
  for (const each of listeners) each(now);
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    heard(false);
    throw new Unreachable();
  }
  heard(true);
  if (answer.status === 401) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    throw new Problem(401, "The server requires its token.");
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Problem(answer.status, said.detail ?? `${answer.status} ${answer.statusText}`);
  }
  return answer;
}

function address(path, parameters) {
  const given = Object.entries(parameters ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export const topicPath = (name, rest = "") => `/v1/topics/${encodeURIComponent(name)}${rest}`;

export async function get(path, parameters, signal) {
  return (await ask(address(path, parameters), { signal })).json();
}

export async function getText(path, signal) {
  return (await ask(path, { signal })).text();
}

export async function send(method, path, body = {}) {
  const options = { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await ask(path, options);
  return answer.status === 204 ? null : answer.json();
}

/** Run a long job: `progress` is called with a stage and numbers; the result is returned. */
export async function job(path, body, progress) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify(body),
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch {
      heard(false);
      throw new Unreachable();
    }
    if (part.done) throw new Unreachable();
    waiting += part.value;
    const events = waiting.split("\n\n");
    waiting = events.pop();
    for (const each of events) {
      const name = /^event: (.*)$/m.exec(each)?.[1];
      const data = /^data: (.*)$/m.exec(each)?.[1];
      if (name === "progress") progress(...JSON.parse(data));
      else if (name === "result") return JSON.parse(data);
      else if (name === "problem") throw new Problem(500, JSON.parse(data).message);
    }
  }
}
