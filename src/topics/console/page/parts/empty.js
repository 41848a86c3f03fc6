// Places without data: nothing there yet, not allowed, or failed.

import { h } from "../core/dom.js";
import { icon } from "./icon.js";

/** Says what would be here, and what to do next. */
export function empty(title, text, ...actions) {
  return h("div.empty", [h("p.empty-title", title), text ? h("p.muted", text) : null, actions.length ? h("div.actions", actions) : null]);
}

/** The same for a whole page. */
export function emptyPage(title, text, ...actions) {
  return h("div.empty", [h("h1.empty-title", title), h("p.muted", text), h("div.actions", actions)]);
}

/** A failed call, with the words of the server. */
export function problem(error, retry) {
  const title = error.status === 403 ? "This key may not see this" : error.status === 404 ? "Not there" : "This did not work";
  return h("div.empty", { role: "alert" }, [
    h("p.empty-title", [icon("alert"), title]),
    h("p.muted", error.message),
    retry && error.status !== 403 ? h("div.actions", h("button.button", { type: "button", onclick: retry }, "Try again")) : null,
  ]);
}

export function loading() {
  return h("div.empty", { "aria-busy": "true" }, h("p.muted", "Loading…"));
}
