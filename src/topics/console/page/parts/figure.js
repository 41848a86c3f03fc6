// A figure with a label above it and a line about it below.

import { h } from "../core/dom.js";

/** `tone` is "", "warn" or "bad"; `extra` is a node between the figure and its line. */
export function figureCard(label, value, unit, note, { tone = "", extra = null } = {}) {
  return h("section.card.figure", [
    h("h2.figure-label", label),
    h("p.figure-value", { class: tone }, [value, unit ? h("span.figure-unit", unit) : null]),
    extra,
    h("p.muted.small", note),
  ]);
}
