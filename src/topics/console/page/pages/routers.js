// Routers as a graph, sources left and dests right, with rates and lags; below it the same as a table.

import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { readAll } from "../core/pages_of.js";
import { Rates } from "../core/rates.js";
import { noteHeads } from "../core/topic_rates.js";
import { badge } from "../parts/badge.js";
import { scopedButton } from "../parts/button.js";
import { empty } from "../parts/empty.js";
import { endLink } from "../parts/end_link.js";
import { RouterGraph } from "../parts/router_graph.js";
import { searchField } from "../parts/search.js";
import { Table } from "../parts/table.js";
import { openCreateRouter, openRouter } from "./router_dialogs.js";

const REFRESH_MS = 2500;
const ROUTERS_MAX = 5000;
// More lines than this are no picture any more.
const DRAWN_MAX = 150;
const LAG_HIGH = 1000;

const copied = new Rates();

export function open(view) {
  let rows = [];
  let hasMore = false;
  const graph = new RouterGraph({ onOpen: (router) => openRouter(view, router), lagHigh: LAG_HIGH });
  const table = routerTable((row) => openRouter(view, row.router));
  const note = h("p.muted.small", { role: "status" });
  const search = searchField(view, { label: "Routers whose name, source or dest contains", placeholder: "Find a router or topic…", onchange: show });
  const create = scopedButton(["admin"], "New router", () => openCreateRouter(), { kind: "primary", iconName: "plus" });
  view.head("Routers", { about: "Each copies the records of its source to its dest, from the moment it was made.", controls: [search.element, create] });
  const place = h("div.stack-wide");
  view.root.append(place, note);
  view.list = table;
  let isLoaded = false;

  function show() {
    if (!isLoaded) return;
    const text = search.field.value.trim();
    const found = rows.filter((row) => [row.router, row.source, row.dest].some((name) => name.includes(text)));
    const isTooMany = found.length > DRAWN_MAX;
    if (rows.length === 0) {
      const make = scopedButton(["admin"], "New router", () => openCreateRouter(), { kind: "primary" });
      clear(place, empty("No routers", "A router copies each record of a topic to another one: for an audit, for one customer, or into a stream.", make));
    } else if (found.length === 0) clear(place, empty("No router matches", `No name has “${format.visible(text)}” in it.`));
    else {
      table.setRows(found);
      if (!isTooMany) graph.draw(found);
      graph.element.hidden = isTooMany;
      if (graph.element.parentNode !== place) clear(place, graph.element, table.element);
    }
    const many = isTooMany ? ` The graph shows up to ${DRAWN_MAX}: search for some of them.` : "";
    note.textContent = rows.length ? `${format.plural(found.length, "router")}${hasMore ? ", the first ones by name" : ""}.${many}` : "";
  }

  view.every(REFRESH_MS, async () => {
    const list = await readAll("/v0/routers", "routers", { signal: view.signal, max: ROUTERS_MAX });
    const topics = await readAll("/v0/topics", "topics", { signal: view.signal, max: 1000 });
    noteHeads(topics.entries);
    const typeByTopic = new Map(topics.entries.map((topic) => [topic.topic, topic.type]));
    for (const router of list.entries) copied.note(router.router, router.forwarded_total);
    rows = list.entries.map((router) => ({ ...router, rate: copied.rate(router.router), sourceType: typeByTopic.get(router.source), destType: typeByTopic.get(router.dest) }));
    ({ hasMore } = list);
    isLoaded = true;
    show();
  });
}

function routerTable(onOpen) {
  return new Table({
    label: "Routers",
    class: "fits",
    rowsMax: 12,
    rowKey: (row) => row.router,
    onOpen,
    columns: [
      { name: "router", label: "Router", width: "minmax(110px, 1.4fr)", narrowWidth: "minmax(64px, 1fr)", cell: (row) => h("button.link-button", { type: "button", onclick: () => onOpen(row) }, row.router) },
      { name: "source", label: "Source", width: "minmax(110px, 1.4fr)", hideNarrow: true, cell: (row) => endLink(row.source, row.sourceType) },
      { name: "dest", label: "Dest", width: "minmax(110px, 1.4fr)", narrowWidth: "minmax(64px, 1fr)", cell: (row) => endLink(row.dest, row.destType) },
      { name: "guarantee", label: "Guarantee", width: "112px", hideNarrow: true, cell: (row) => badge(row.guarantee === "exactly_once" ? "exactly once" : "at least once") },
      { name: "rate", label: "Copies/s", width: "76px", narrowWidth: "60px", align: "right", cell: (row) => format.rate(row.rate) },
      { name: "total", label: "Copied", width: "96px", align: "right", hideNarrow: true, cell: (row) => format.count(row.forwarded_total) },
      { name: "lag", label: "Lag", width: "72px", narrowWidth: "44px", align: "right", cell: (row) => lagCell(row.lag) },
    ],
  });
}

function lagCell(lag) {
  if (lag === null) return h("span.muted", { title: "Not known: streams are off, or the router has just begun" }, "?");
  return h("span", { class: lag > LAG_HIGH ? "warn-text" : "" }, format.count(lag));
}
