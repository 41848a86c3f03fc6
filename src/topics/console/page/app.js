// Starts the console: the frame around the pages, and which page is shown.

import { ApiError, connection, keyNeeded } from "./core/api.js";
import { h } from "./core/dom.js";
import { listen } from "./core/keyboard.js";
import { go, here, link, match } from "./core/router.js";
import * as samples from "./core/samples.js";
import { refresh, session } from "./core/session.js";
import { applyTheme } from "./core/theme.js";
import { View } from "./core/view.js";
import { PAGES } from "./pages.js";
import { banner } from "./parts/banner.js";
import { emptyPage, problem } from "./parts/empty.js";
import { openHelp } from "./parts/help.js";
import { askForKey } from "./parts/key_dialog.js";
import { navigation } from "./parts/navigation.js";
import { toastPlace } from "./parts/toast.js";

const CHECK_MS = 1000;

applyTheme();

const main = h("main.main", { id: "main", tabindex: "-1" });
const frame = navigation(PAGES, main);
document.body.append(h("a.skip", { href: "#main", onclick: skip }, "Skip to the page"), frame.element, banner(), toastPlace());

let view = null;
let shown = { path: null, query: "" };

function skip(event) {
  event.preventDefault();
  main.focus();
}

/** Shows the page of the address. `isForced`: opens it again, because the rights have changed. */
async function show(isForced = false) {
  const { path, query } = here();
  if (!isForced && path === shown.path) {
    if (view?.onQuery && query.toString() !== shown.query) view.onQuery(query);
    shown.query = query.toString();
    return;
  }
  shown = { path, query: query.toString() };
  view?.close();
  main.replaceChildren();
  const found = match(PAGES, path);
  frame.show(found?.page ?? null);
  if (found === null) {
    view = null;
    main.append(emptyPage("There is no such page", `The console has nothing at ${path}.`, h("a.button", { href: link("/") }, "Go to the overview")));
    return;
  }
  const root = h("div.page");
  main.append(root);
  view = new View(root, found.page, found.params, query);
  view.onProblem = (error) => {
    if (!root.querySelector("[role=alert]")) root.append(problem(error));
  };
  const opening = view;
  const module = await found.page.load();
  if (opening.signal.aborted) return;
  main.scrollTop = 0;
  module.open(opening);
}

listen({
  search: () => main.querySelector("[data-search]")?.focus(),
  next: () => view?.list?.move(1),
  previous: () => view?.list?.move(-1),
  open: () => view?.list?.open(),
  close: () => frame.closeMenu() || main.querySelector("[data-close]")?.click(),
  help: openHelp,
  go: (letter) => {
    const page = PAGES.find((each) => each.key === letter);
    if (page) go(link(page.path));
    return page !== undefined;
  },
});

window.addEventListener("hashchange", () => show());
keyNeeded.follow((reason) => reason !== null && showKeyNeeded(reason));

function showKeyNeeded(reason) {
  view?.close();
  view = null;
  frame.show(null);
  main.replaceChildren(emptyPage("A key is needed", reason, h("button.button.primary", { type: "button", onclick: () => askForKey(reason) }, "Enter a key")));
  askForKey(reason);
}

let rights = null;
session.follow((state) => {
  const now = JSON.stringify([state.isKnown, state.scopes, state.prefixes]);
  if (state.isKnown && now !== rights) {
    samples.forgetReadings();
    show(true);
  }
  rights = now;
});

/** Reads the metrics while the tab is visible. It also finds out that the server is away, and that it is back. */
async function watchServer() {
  let waitMs = samples.SAMPLE_MS;
  if (document.visibilityState === "visible" && keyNeeded.value === null) {
    try {
      if (!session.value.isKnown) await refresh();
      if (session.value.scopes.includes("read")) await samples.read();
      else await refresh();
    } catch (error) {
      // The banner or the question for a key says it.
      if (!(error instanceof ApiError)) throw error;
    }
    if (connection.value !== "online") waitMs = CHECK_MS;
  }
  setTimeout(watchServer, waitMs);
}

// A server that is back may be another version, with other keys.
let wasAway = false;
connection.follow((state) => {
  if (state === "online" && wasAway) refresh().catch(() => {});
  wasAway = state !== "online";
});

document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && connection.value !== "online" && refresh().catch(() => {}));
watchServer();
