// Records as the server sends them, with the text of `data` and `meta` exactly as it was written.
//
// JSON.parse would change large numbers, and the order of some members. So the text of each payload is cut out of the answer,
// and parsed only when someone looks into it.

import { parseExact } from "./exact_json.js";

const PREVIEW_CHARS = 400;

export class LogRecord {
  #parsed;

  constructor(seq, ts, node, tag, dataText, metaText) {
    this.seq = seq;
    this.ts = ts;
    this.node = node;
    this.tag = tag;
    this.dataText = dataText;
    this.metaText = metaText;
    this.preview = dataText.length > PREVIEW_CHARS ? `${dataText.slice(0, PREVIEW_CHARS)}…` : dataText;
  }

  /** The payload as values, with exact numbers. */
  get data() {
    this.#parsed ??= { value: parseExact(this.dataText) };
    return this.#parsed.value;
  }

  get meta() {
    return this.metaText === null ? null : parseExact(this.metaText);
  }
}

/** The records in the text of a page of `diff`, or of an event `record`. */
export function recordsOf(text) {
  const list = members(text, skipSpace(text, 0)).get("records");
  if (list === undefined) return [];
  const records = [];
  let place = skipSpace(text, list[0] + 1);
  while (text[place] === "{") {
    const found = members(text, place);
    const value = (name) => (found.has(name) ? JSON.parse(text.slice(...found.get(name))) : null);
    const raw = (name) => (found.has(name) ? text.slice(...found.get(name)) : null);
    records.push(new LogRecord(value("$seq"), value("$ts"), value("$node"), value("$tag"), raw("data"), raw("meta")));
    place = skipSpace(text, endOf(text, place));
    if (text[place] === ",") place = skipSpace(text, place + 1);
  }
  return records;
}

/** Where the value of each member of an object begins and ends. The text is JSON that the server has checked. */
function members(text, start) {
  const found = new Map();
  let place = skipSpace(text, start + 1);
  while (text[place] === '"') {
    const nameEnd = endOf(text, place);
    const valueStart = skipSpace(text, skipSpace(text, nameEnd) + 1);
    const valueEnd = endOf(text, valueStart);
    found.set(JSON.parse(text.slice(place, nameEnd)), [valueStart, valueEnd]);
    place = skipSpace(text, valueEnd);
    if (text[place] === ",") place = skipSpace(text, place + 1);
  }
  return found;
}

function skipSpace(text, place) {
  while (place < text.length && text.charCodeAt(place) <= 32) place += 1;
  return place;
}

/** The place after the value that begins here. */
function endOf(text, start) {
  const first = text[start];
  if (first === '"') return endOfString(text, start);
  if (first !== "{" && first !== "[") {
    let place = start;
    while (place < text.length && !',]}'.includes(text[place]) && text.charCodeAt(place) > 32) place += 1;
    return place;
  }
  let depth = 0;
  for (let place = start; place < text.length; ) {
    const character = text[place];
    if (character === '"') {
      place = endOfString(text, place);
      continue;
    }
    if (character === "{" || character === "[") depth += 1;
    else if (character === "}" || character === "]") depth -= 1;
    place += 1;
    if (depth === 0) return place;
  }
  return text.length;
}

function endOfString(text, start) {
  let place = text.indexOf('"', start + 1);
  while (place > 0) {
    let slashes = 0;
    while (text[place - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return place + 1;
    place = text.indexOf('"', place + 1);
  }
  return text.length;
}
