// A payload as a tree, as text, or as bytes.

import { clear, h } from "../core/dom.js";
import { textOf } from "../core/exact_json.js";
import { bytes, visible } from "../core/format.js";
import { segmented } from "./button.js";
import { jsonTree } from "./json_tree.js";

const TEXT_CHARS_STEP = 100_000;
const HEX_BYTES_STEP = 2048;
const HEX_WIDTH = 16;

// The form that was chosen last.
let chosen = "tree";

/** `text` is the JSON as it was written, `value` the same parsed. */
export function payload(text, value) {
  const place = h("div.payload-body");
  const draw = () => clear(place, { tree: () => jsonTree(value), text: () => textForm(text, value), hex: () => hexForm(text) }[chosen]());
  const choice = segmented("Form of the payload", [["tree", "Tree"], ["text", "Text"], ["hex", "Hex"]], chosen, (form) => {
    chosen = form;
    draw();
  });
  draw();
  return h("div.payload", [h("div.row", [choice, h("span.muted.small", bytes(new TextEncoder().encode(text).length))]), place]);
}

function textForm(text, value) {
  const shown = typeof value === "string" ? value : text.length < TEXT_CHARS_STEP ? textOf(value, 2) : text;
  return inSteps(shown.length, TEXT_CHARS_STEP, (until) => visible(shown.slice(0, until)));
}

function hexForm(text) {
  const all = new TextEncoder().encode(text);
  return inSteps(all.length, HEX_BYTES_STEP, (until) => hexLines(all.subarray(0, until)));
}

/** Shows the beginning, with a button for more. */
function inSteps(length, step, textUntil) {
  const text = h("pre.payload-text", { tabindex: "0" });
  const more = h("button.button.quiet", { type: "button", onclick: () => show(shown + step * 4) });
  let shown = 0;
  function show(until) {
    shown = Math.min(until, length);
    text.textContent = textUntil(shown);
    more.hidden = shown >= length;
    more.textContent = `Show more (${bytes(length - shown)} left)`;
  }
  show(step);
  return h("div", [text, more]);
}

function hexLines(data) {
  const lines = [];
  for (let offset = 0; offset < data.length; offset += HEX_WIDTH) {
    const part = [...data.subarray(offset, offset + HEX_WIDTH)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${offset.toString(16).padStart(6, "0")}  ${hex.padEnd(HEX_WIDTH * 3 - 1)}  ${letters}`);
  }
  return lines.join("\n");
}
