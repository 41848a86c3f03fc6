// What a page gets: its place in the document, its address, and work that ends with it.

import { ApiError, connection } from "./api.js";
import { replaceQuery } from "./router.js";
import { clear, h } from "./dom.js";
import { problem } from "../parts/empty.js";

export class View {
  #ending = new AbortController();

  constructor(root, page, params, query) {
    // The element that the page fills.
    this.root = root;
    this.page = page;
    // Names in the path, decoded.
    this.params = params;
    // URLSearchParams of the address.
    this.query = query;
    // Aborted when the user leaves the page: give it to every call.
    this.signal = this.#ending.signal;
    // Set by a page that takes a new query without being opened again: `onQuery(query)`.
    this.onQuery = null;
    // The list that `j`, `k` and Enter work on: an object with `move(step)` and `open()`.
    this.list = null;
  }

  /** The head of the page: a title, a line about it, and controls on the right. */
  head(title, { about = null, controls = [], trail = [] } = {}) {
    document.title = `${typeof title === "string" ? title : title.textContent} · topics`;
    const crumbs = trail.map(([text, address]) => [h("a", { href: address }, text), h("span", { "aria-hidden": "true" }, "/")]);
    const made = h("header.page-head", [
      h("div.page-title", [trail.length ? h("nav.trail", { "aria-label": "Where this page is" }, crumbs) : null, h("h1", title), about ? h("p.muted", about) : null]),
      h("div.page-controls", controls),
    ]);
    this.root.append(made);
    return made;
  }

  /** Keeps a part of the state of the page in its address, so that the address can be shared. */
  setQuery(values) {
    replaceQuery(values);
  }

  /** Runs `task` now and every `ms`, while the tab is visible; at once when the server is back. */
  every(ms, task) {
    let timer = null;
    let isRunning = false;
    const run = async () => {
      clearTimeout(timer);
      if (this.signal.aborted || isRunning) return;
      isRunning = true;
      try {
        if (document.visibilityState === "visible") await task();
      } catch (error) {
        this.#report(error);
      }
      isRunning = false;
      if (!this.signal.aborted) timer = setTimeout(run, ms);
    };
    let isFirst = true;
    connection.follow((state) => {
      if (state === "online" && !isFirst) run();
      isFirst = false;
    }, this.signal);
    this.on(document, "visibilitychange", () => document.visibilityState === "visible" && run());
    this.signal.addEventListener("abort", () => clearTimeout(timer));
    return run();
  }

  /** Runs a task once. Its failure is shown on the page, with a button to try again. */
  async load(place, task) {
    try {
      await task();
    } catch (error) {
      if (this.signal.aborted || error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      clear(place, problem(error, () => this.load(clear(place), task)));
    }
  }

  /** A listener that ends with the page. */
  on(target, type, listener, options = {}) {
    target.addEventListener(type, listener, { ...options, signal: this.signal });
  }

  close() {
    this.#ending.abort();
  }

  #report(error) {
    // The banner shows that the server is away. Other failures are bugs, or rights that the key lacks.
    if (error.name === "AbortError" || (error instanceof ApiError && (error.isOffline || error.status === 503))) return;
    if (error instanceof ApiError) this.onProblem?.(error);
    else throw error;
  }
}
