// A bar from empty to full.

import { h } from "../core/dom.js";

/** `part` is from 0 to 1. */
export function meter(part, label, tone = "") {
  const bounded = Math.min(Math.max(part, 0), 1);
  const fill = h("span.meter-fill", { class: tone });
  fill.style.width = `${bounded * 100}%`;
  return h("span.meter", { role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(Math.round(bounded * 100)) }, fill);
}
