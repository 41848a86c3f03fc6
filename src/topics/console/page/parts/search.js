// A field to search in, with the key `/`. What is typed stays in the address of the page, as `find`.

import { h } from "../core/dom.js";
import { icon } from "./icon.js";

/** `onchange` is called after each letter. Returns the element, and the field in it. */
export function searchField(view, { label, placeholder, onchange }) {
  const oninput = () => {
    view.setQuery({ find: field.value });
    onchange();
  };
  const field = h("input.field", { type: "search", placeholder, "aria-label": label, "data-search": true, spellcheck: "false", value: view.query.get("find") ?? "", oninput });
  return { element: h("div.search", [icon("search"), field]), field };
}
