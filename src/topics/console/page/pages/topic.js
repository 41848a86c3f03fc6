// One topic: its figures, and tabs for its records, the live tail, writing, and its settings.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { link } from "../core/router.js";
import { can } from "../core/session.js";
import { noteHeads, topicRate } from "../core/topic_rates.js";
import { badge, durabilityBadge } from "../parts/badge.js";
import { empty } from "../parts/empty.js";
import { openRecords } from "./topic_records.js";
import { openSettings } from "./topic_settings.js";
import { openTail } from "./topic_tail.js";
import { openWrite } from "./topic_write.js";

const STATE_MS = 2000;
// Tabs of the page, the scope that each one needs, and what fills it.
const TABS = [
  ["records", "Records", "read", openRecords],
  ["live", "Live tail", "read", openTail],
  ["write", "Write", "write", openWrite],
  ["settings", "Settings", "read", openSettings],
];

export function open(view) {
  const { topic } = view.params;
  view.root.classList.add("fills");
  const badges = h("span.row");
  view.head(topic, { trail: [["Topics", link("/topics")]], controls: [badges] });
  const figures = h("dl.strip");
  const panel = h("section.panel", { role: "tabpanel", "aria-label": "Topic" });
  const buttons = TABS.map(([name, label]) => h("button.tab", { type: "button", role: "tab", "aria-selected": "false", onclick: () => openTab(name, true) }, label));
  view.root.append(figures, h("div.tabs", { role: "tablist", "aria-label": "Parts of the topic" }, buttons), panel);

  // What the tabs share. `onState` is called with each newer state.
  const shared = { topic, state: null, onState: null };
  let tab = null;

  /** Fills the panel. Work of a tab ends with its `signal`. */
  function openTab(name, isChosen) {
    const place = Math.max(TABS.findIndex(([each]) => each === name), 0);
    if (isChosen) view.setQuery({ tab: TABS[place][0] === "records" ? "" : TABS[place][0], seq: "" });
    tab?.abort();
    tab = new AbortController();
    for (const [number, button] of buttons.entries()) button.setAttribute("aria-selected", String(number === place));
    view.list = null;
    shared.onState = null;
    clear(panel);
    panel.className = `panel panel-${TABS[place][0]}`;
    const [, label, scope, fill] = TABS[place];
    panel.setAttribute("aria-label", label);
    if (!can(scope)) panel.append(empty(`This key may not ${scope}`, `“${label}” needs a key with the scope ${scope}.`));
    else fillWith(fill, AbortSignal.any([tab.signal, view.signal]));
  }

  /** Opens a tab with the state of now: the address may name a record that was just written. */
  function fillWith(fill, signal) {
    view.load(panel, async () => {
      if (can("read")) await refresh();
      if (!signal.aborted) fill(view, panel, shared, signal);
    });
  }

  function draw(state) {
    clear(badges, state.type === "queue" ? badge("queue", "accent") : null, durabilityBadge(state.config.durability));
    const facts = [
      ["Records", format.count(state.count)],
      ["Size", format.bytes(state.bytes)],
      ["Earliest seq", format.count(state.earliest_seq)],
      ["Head seq", format.count(state.head_seq)],
      ["Records/s", format.rate(topicRate(topic))],
      ["Last write", state.last_write_ts === null ? "not since the start" : format.age(state.last_write_ts)],
    ];
    if (state.queue) facts.push(["Ready", format.count(state.queue.ready)], ["In flight", format.count(state.queue.in_flight)]);
    clear(figures, facts.map(([label, value]) => h("div", [h("dt", label), h("dd", value)])));
  }

  async function refresh() {
    const state = await api.get(api.path`/v0/topics/${topic}`, { query: { touch: false }, signal: view.signal });
    noteHeads([state]);
    shared.state = state;
    draw(state);
    shared.onState?.(state);
  }

  view.onQuery = (query) => openTab(query.get("tab") ?? "records", false);
  openTab(view.query.get("tab") ?? (can("read") ? "records" : "write"), false);
  if (can("read")) view.every(STATE_MS, refresh);
}
