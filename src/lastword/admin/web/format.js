// Numbers, times and bytes for people.

const whole = new Intl.NumberFormat("en");
const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  let unit = 0;
  while (Math.abs(size) >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);

/** A duration by its two largest units. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return seconds < 10 ? `${(ms / 1000).toFixed(1)} s` : `${seconds} s`;
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"], [Math.floor(seconds / 60) % 60, "min"]];
  while (parts.length > 1 && parts[0][0] === 0) parts.shift();
  return parts.slice(0, 2).filter((each, index) => index === 0 || each[0]).map(([amount, unit]) => `${amount} ${unit}`).join(" ");
}

/** How long ago, to the second at most. */
export function ago(ms, nowMs) {
  if (ms === null || ms === undefined) return "never";
  const since = nowMs - ms;
  if (since < 2000) return "just now";
  return since < 10_000 ? `${Math.round(since / 1000)} s ago` : `${duration(since)} ago`;
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "none";
  const moment = new Date(ms);
  return Number.isNaN(moment.getTime()) ? `${ms} ms` : moment.toISOString().replace("T", " ").replace("Z", "");
}

// ------------------------------------------------------------------------------------------ keys and values

/** The bytes of a field that may be text, base64 or null. */
export function bytesOf(record, name) {
  if (record[`${name}_base64`] !== undefined) return Uint8Array.from(atob(record[`${name}_base64`]), (each) => each.charCodeAt(0));
  return record[name] === null || record[name] === undefined ? null : new TextEncoder().encode(record[name]);
}

/** The text of a field; null if it is null or not UTF-8. */
export const textOf = (record, name) => record[name] ?? null;

export const isNull = (record, name) => record[`${name}_base64`] === undefined && (record[name] === null || record[name] === undefined);

// Control characters, line breaks, direction marks and zero-width characters are shown, so that nothing hides in a text.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

function seen(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "\u2421" : `\\u${code.toString(16).padStart(4, "0")}`;
}

export const visible = (text) => text.replace(UNSEEN, seen);

/** The same, but line breaks and tabs stay. */
export const visibleLines = (text) => text.replace(UNSEEN, (each) => (each === "\n" || each === "\t" ? each : seen(each)));

export function short(text, most = 160) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** One line for a key or value. */
export function line(record, name, most = 160) {
  const text = textOf(record, name);
  if (text !== null) return visible(short(text, most));
  const raw = bytesOf(record, name);
  return raw === null ? "null" : short([...raw.slice(0, most / 2)].map((each) => each.toString(16).padStart(2, "0")).join(" "), most);
}

export function hex(raw, most = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, most); at += 16) {
    const row = [...raw.slice(at, at + 16)];
    const numbers = row.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const letters = row.map((each) => (each >= 0x20 && each < 0x7f ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers}  ${letters}`);
  }
  if (raw.length > most) lines.push(`… ${count(raw.length - most)} more bytes`);
  return lines.join("\n");
}

/** Indented JSON with each number as it was written; null if the text is not a JSON object or array. */
export function prettyJson(text) {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object") return null;
  } catch {
    return null;
  }
  let made = "", depth = 0, quoted = false;
  const indent = () => `\n${"  ".repeat(depth)}`;
  for (let at = 0; at < text.length; at += 1) {
    const each = text[at];
    if (quoted) {
      made += each;
      if (each === "\\") made += text[(at += 1)];
      else if (each === '"') quoted = false;
    } else if (each === '"') {
      quoted = true;
      made += each;
    } else if (each === "{" || each === "[") {
      const end = text.slice(at + 1).match(/^\s*([}\]])/);
      if (end) {
        made += each + end[1];
        at += end[0].length;
      } else {
        depth += 1;
        made += each + indent();
      }
    } else if (each === "}" || each === "]") {
      depth -= 1;
      made += indent() + each;
    } else if (each === ",") made += each + indent();
    else if (each === ":") made += ": ";
    else if (!/\s/.test(each)) made += each;
  }
  return made;
}
