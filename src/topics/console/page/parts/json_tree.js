// JSON as a tree. Branches are built when they are opened, and long ones in steps, so that a large record stays quick.

import { h } from "../core/dom.js";
import { ExactNumber } from "../core/exact_json.js";
import { count, visible } from "../core/format.js";

const CHILDREN_STEP = 100;
const TEXT_CHARS = 2000;
const OPEN_DEPTH = 2;
const OPEN_CHILDREN_MAX = 30;

export function jsonTree(value) {
  return h("div.tree", node(null, value, 0));
}

function node(name, value, depth) {
  if (value === null || typeof value !== "object" || value instanceof ExactNumber) return h("div.tree-leaf", [label(name), leaf(value)]);
  const entries = Array.isArray(value) ? value.map((each, place) => [place, each]) : Object.entries(value);
  const summary = Array.isArray(value) ? `[${count(entries.length)}]` : `{${count(entries.length)}}`;
  if (entries.length === 0) return h("div.tree-leaf", [label(name), h("span.muted", Array.isArray(value) ? "[]" : "{}")]);
  const children = h("div.tree-children");
  const branch = h("details.tree-branch", [h("summary", [label(name), h("span.muted", summary)]), children]);
  const fill = () => {
    if (branch.open && children.childElementCount === 0) addChildren(children, entries, 0, depth + 1);
  };
  branch.addEventListener("toggle", fill);
  if (depth < OPEN_DEPTH && entries.length <= OPEN_CHILDREN_MAX) branch.open = true;
  fill();
  return branch;
}

function addChildren(place, entries, from, depth) {
  for (const [name, value] of entries.slice(from, from + CHILDREN_STEP)) place.append(node(name, value, depth));
  const left = entries.length - from - CHILDREN_STEP;
  if (left <= 0) return;
  const more = h("button.button.quiet", { type: "button", onclick: showMore }, `Show more (${count(left)} left)`);
  function showMore() {
    more.remove();
    addChildren(place, entries, from + CHILDREN_STEP, depth);
  }
  place.append(more);
}

function label(name) {
  return name === null ? null : [h("span.tree-name", visible(name)), ": "];
}

function leaf(value) {
  if (typeof value === "string") {
    const shown = value.length > TEXT_CHARS ? `${value.slice(0, TEXT_CHARS)}… (${count(value.length)} characters)` : value;
    return h("span.tree-text", `"${visible(shown)}"`);
  }
  const kind = value === null || typeof value === "boolean" ? "word" : "number";
  return h("span", { class: `tree-${kind}` }, value instanceof ExactNumber ? value.text : String(value));
}
