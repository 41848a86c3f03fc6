// Which records are shown: by tag, node, and a condition on the payload.

import { ExactNumber } from "./exact_json.js";

const CONDITION = /^\s*(.+?)\s*(?:(!=|>=|<=|=|>|<|~)\s*(.*?))?\s*$/s;
const PATH_PART = /^(?:\.?([A-Za-z_$][\w$-]*)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\])/;

export const CONDITION_HELP = 'Such as total > 10, customer.id = 7, items[0].name ~ "ink". ~ means contains; a path alone means that it is there.';

/** A test for records. `values` has `tag` ("acme:*" is a prefix), `node` and `path`. Throws an Error that says what is wrong. */
export function makeFilter({ tag, node, path }) {
  const tests = [];
  if (tag) tests.push(tag.endsWith("*") ? (record) => record.tag !== null && record.tag.startsWith(tag.slice(0, -1)) : (record) => record.tag === tag);
  if (node) tests.push((record) => record.node === node);
  if (path?.trim()) tests.push(conditionTest(path));
  return { isOn: tests.length > 0, takes: (record) => tests.every((test) => test(record)) };
}

function conditionTest(text) {
  const [, pathText, operator, wantedText] = text.match(CONDITION);
  const parts = parsePath(pathText);
  const wanted = operator === undefined ? undefined : wantedValue(wantedText);
  return (record) => {
    const found = valueAt(record.data, parts);
    if (operator === undefined) return found !== undefined;
    return found !== undefined && compare(plain(found), operator, wanted);
  };
}

/** "$.a.b[0]" and "a.b[0]" as ["a", "b", 0]. */
export function parsePath(text) {
  let rest = text.replace(/^\$\.?/, "");
  const parts = [];
  while (rest) {
    const found = rest.match(PATH_PART);
    if (found === null) throw new Error(`“${text}” is no path: write customer.id or items[0].name`);
    parts.push(found[1] ?? (found[2] !== undefined ? Number(found[2]) : JSON.parse(`"${found[3]}"`)));
    rest = rest.slice(found[0].length);
  }
  return parts;
}

function wantedValue(text) {
  try {
    return JSON.parse(text);
  } catch {
    // A word without quotes is a text.
    return text;
  }
}

function valueAt(value, parts) {
  for (const part of parts) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, part)) return undefined;
    value = value[part];
  }
  return value;
}

function plain(value) {
  return value instanceof ExactNumber ? Number(value.text) : value;
}

function compare(found, operator, wanted) {
  switch (operator) {
    case "=":
      return isSame(found, wanted);
    case "!=":
      return !isSame(found, wanted);
    case "~":
      return (typeof found === "string" ? found : JSON.stringify(found)).includes(String(wanted));
    default:
      if (typeof found !== typeof wanted) return false;
      return { ">": found > wanted, ">=": found >= wanted, "<": found < wanted, "<=": found <= wanted }[operator];
  }
}

function isSame(found, wanted) {
  return typeof found === "object" && found !== null ? JSON.stringify(found) === JSON.stringify(wanted) : found === wanted;
}
