// All queues: how deep each is, how old its oldest ready job is, and what died.

import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { readAll } from "../core/pages_of.js";
import { go, link } from "../core/router.js";
import { noteHeads, topicRate } from "../core/topic_rates.js";
import { empty } from "../parts/empty.js";
import { depthBar } from "../parts/depth_bar.js";
import { searchField } from "../parts/search.js";
import { Table } from "../parts/table.js";

const REFRESH_MS = 3000;
const QUEUES_MAX = 5000;
// A ready job that waits longer than this is shown in colour.
const OLD_MS = 60_000;

const VALUES = {
  topic: (row) => row.topic,
  ready: (row) => row.queue.ready,
  in_flight: (row) => row.queue.in_flight,
  delayed: (row) => row.queue.delayed,
  dead: (row) => row.queue.dead ?? -1,
  age: (row) => row.queue.oldest_ready_age_ms ?? -1,
  rate: (row) => topicRate(row.topic) ?? -1,
};

export function open(view) {
  view.root.classList.add("fills");
  let sort = { name: "topic", isDescending: false };
  let rows = [];
  let hasMore = false;
  let isLoaded = false;
  const foot = h("div.table-foot", { role: "status" });
  const table = new Table({
    label: "Queues",
    rowKey: (row) => row.topic,
    sort: "topic",
    onSort: (name, isDescending) => {
      sort = { name, isDescending };
      show();
    },
    onOpen: (row) => go(link("/queues/:queue", { queue: row.topic })),
    empty: () =>
      isLoaded
        ? empty("No queues", "A topic of the type queue gives each record to one worker. Create one under Topics, or run topics demo.", h("a.button", { href: link("/topics") }, "Go to the topics"))
        : empty("Loading…", ""),
    columns: [
      { name: "topic", label: "Queue", width: "minmax(150px, 2fr)", narrowWidth: "minmax(110px, 1fr)", sortable: true, cell: (row) => h("a", { href: link("/queues/:queue", { queue: row.topic }) }, row.topic) },
      { name: "depth", label: "Ready, in flight, delayed", width: "minmax(120px, 1.4fr)", hideNarrow: true, cell: (row) => depthBar(row.queue, deepest(rows)) },
      figure("ready", "Ready", (row) => row.queue.ready),
      figure("in_flight", "In flight", (row) => row.queue.in_flight),
      figure("delayed", "Delayed", (row) => row.queue.delayed, true),
      { ...figure("dead", "Dead", (row) => row.queue.dead), title: "Letters in the dead-letter topic of the queue", cell: (row) => deadCell(row.queue.dead) },
      { ...figure("age", "Oldest ready", () => 0), width: "104px", hideNarrow: true, cell: (row) => ageCell(row.queue.oldest_ready_age_ms) },
      { ...figure("rate", "New jobs/s", () => 0), hideNarrow: true, cell: (row) => format.rate(topicRate(row.topic)) },
    ],
  });
  const search = searchField(view, { label: "Queues whose names contain", placeholder: "Find a queue…", onchange: show });
  view.head("Queues", { about: "Each job goes to one worker at a time. What fails too often becomes a dead letter.", controls: [search.element] });
  view.list = table;
  view.root.append(table.element, foot);

  function show() {
    const found = rows.filter((row) => row.topic.includes(search.field.value.trim()));
    const direction = sort.isDescending ? -1 : 1;
    const value = VALUES[sort.name];
    found.sort((one, other) => direction * (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0));
    table.setRows(found);
    const jobs = rows.reduce((sum, row) => sum + row.queue.ready + row.queue.in_flight + row.queue.delayed, 0);
    clear(foot, h("span", `${format.plural(rows.length, "queue")}${hasMore ? ", the first ones by name" : ""}`), h("span", `${format.plural(jobs, "job")} in them`));
  }

  table.setRows([]);
  view.every(REFRESH_MS, async () => {
    const list = await readAll("/v0/topics", "topics", { query: { type: "queue" }, signal: view.signal, max: QUEUES_MAX });
    noteHeads(list.entries);
    ({ entries: rows, hasMore } = list);
    isLoaded = true;
    show();
  });
}

function deepest(rows) {
  return Math.max(...rows.map((row) => row.queue.ready + row.queue.in_flight + row.queue.delayed), 1);
}

function figure(name, label, value, hideNarrow = false) {
  return { name, label, width: "84px", narrowWidth: "64px", align: "right", sortable: true, sortsDescending: true, hideNarrow, cell: (row) => format.count(value(row)) };
}

function deadCell(dead) {
  if (dead === null) return h("span.muted", { title: "The queue keeps none, or the key may not see them" }, "–");
  return dead === 0 ? h("span.muted", "0") : h("span.bad-text", format.count(dead));
}

function ageCell(ageMs) {
  if (ageMs === null) return h("span.muted", "–");
  return h("span", { class: ageMs > OLD_MS ? "warn-text" : "" }, format.span(ageMs));
}
