// Short messages about what was done. They go away by themselves, except for failures.

import { h } from "../core/dom.js";
import { icon } from "./icon.js";

const SHOWN_MS = 5000;
const place = h("div.toasts", { role: "status", "aria-live": "polite" });

export function toastPlace() {
  return place;
}

export function toast(text) {
  show(text, "done");
}

/** A failed action: the message stays until it is closed. */
export function toastError(error) {
  if (error.name !== "AbortError") show(error.message, "failed");
}

function show(text, kind) {
  const close = h("button.icon-button", { type: "button", "aria-label": "Close this message", onclick: () => shown.remove() }, icon("close"));
  const shown = h("div.toast", { class: kind }, [h("span", text), close]);
  place.append(shown);
  if (kind === "done") setTimeout(() => shown.remove(), SHOWN_MS);
}
