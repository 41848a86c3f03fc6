// Figures, times and names as people read them. Every function returns text.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const GROUPED = new Intl.NumberFormat("en-US");
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
// Characters that are not shown, or that change the direction of the text around them.
const INVISIBLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** 1234567 as "1,234,567". */
export function count(value) {
  return value === null || value === undefined ? "–" : GROUPED.format(value);
}

/** 1234567 as "1.2M". */
export function short(value) {
  return value === null || value === undefined ? "–" : Math.abs(value) < 10_000 ? GROUPED.format(Math.round(value)) : SHORT.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < BYTES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : size < 10 ? 2 : size < 100 ? 1 : 0;
  return `${size.toFixed(digits)} ${BYTES[unit]}`;
}

/** A rate a second: "0", "0.4", "12", "3.4K". */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(1);
  return short(value);
}

/** A time span: "85 ms", "4.2 s", "3 min", "5 h", "12 d". */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0 ms" : `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86_400) return `${(seconds / 3600).toFixed(seconds < 36_000 ? 1 : 0)} h`;
  const days = seconds / 86_400;
  return days < 730 ? `${days < 10 ? days.toFixed(1) : GROUPED.format(Math.round(days))} d` : `${GROUPED.format(Math.round(days / 365))} years`;
}

/** How long ago a time in milliseconds was: "4.2 s ago". */
export function age(ts, now = Date.now()) {
  if (ts === null || ts === undefined) return "–";
  return now - ts < 1000 ? "now" : `${span(now - ts)} ago`;
}

/** A time in milliseconds since 1970, in local time: "2026-11-17 04:58:00.123". */
export function time(ts) {
  if (ts === null || ts === undefined) return "–";
  const date = new Date(ts);
  if (Number.isNaN(date.getTime())) return String(ts);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(ts)}`;
}

/** The time of the day: "04:58:00.123". */
export function clock(ts) {
  const date = new Date(ts);
  const two = (value) => String(value).padStart(2, "0");
  const ms = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${ms}`;
}

export function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(part / whole < 0.1 ? 1 : 0)} %` : "–";
}

/** Text from a client, with invisible characters and direction marks written out. */
export function visible(text) {
  return String(text).replace(INVISIBLE, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** The word for a number of things: plural(1, "record") is "1 record". */
export function plural(number, word, more = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : more}`;
}
