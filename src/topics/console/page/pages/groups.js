// Consumer groups of all topics: how far each is behind the head, whether it catches up, and a way to move it.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { readAll } from "../core/pages_of.js";
import { Rates } from "../core/rates.js";
import { link } from "../core/router.js";
import { noteHeads, topicRate } from "../core/topic_rates.js";
import { scopedButton } from "../parts/button.js";
import { empty } from "../parts/empty.js";
import { searchField } from "../parts/search.js";
import { Table } from "../parts/table.js";
import { openCreateGroup, openMoveGroup } from "./group_dialogs.js";

const REFRESH_MS = 3000;
const TOPICS_MAX = 5000;
// Topics whose groups are read one by one; of others the list of topics has the largest lag.
const TOPICS_READ_MAX = 100;
const AT_ONCE = 8;
const LAG_HIGH = 1000;

// Cursors of groups, for their rates.
const cursors = new Rates();

const VALUES = {
  topic: (row) => row.topic,
  group: (row) => row.group,
  seq: (row) => row.seq,
  lag: (row) => row.lag,
  rate: (row) => row.rate ?? -1,
  commit: (row) => row.last_commit_ts,
};

export function open(view) {
  view.root.classList.add("fills");
  let sort = { name: "lag", isDescending: true };
  let rows = [];
  let note = "";
  let isLoaded = false;
  const foot = h("div.table-foot", { role: "status" });
  const table = new Table({
    label: "Consumer groups",
    rowKey: (row) => `${row.topic}/${row.group}`,
    sort: "lag",
    isDescending: true,
    onSort: (name, isDescending) => {
      sort = { name, isDescending };
      show();
    },
    onOpen: move,
    empty: () => (isLoaded ? nothing(search.field.value, refresh) : empty("Loading…", "")),
    columns: [
      { name: "group", label: "Group", width: "minmax(110px, 1.2fr)", narrowWidth: "minmax(84px, 1fr)", sortable: true, cell: (row) => h("button.link-button", { type: "button", onclick: () => move(row) }, row.group) },
      { name: "topic", label: "Topic", width: "minmax(120px, 1.6fr)", narrowWidth: "minmax(84px, 1fr)", sortable: true, cell: (row) => h("a", { href: link("/topics/:topic", row) }, row.topic) },
      { name: "lag", label: "Lag", width: "minmax(150px, 1.4fr)", narrowWidth: "72px", sortable: true, sortsDescending: true, cell: (row) => lagCell(row) },
      { name: "seq", label: "Done up to", width: "104px", align: "right", sortable: true, sortsDescending: true, hideNarrow: true, cell: (row) => format.count(row.seq) },
      { name: "rate", label: "Records/s", width: "88px", align: "right", sortable: true, sortsDescending: true, hideNarrow: true, cell: (row) => format.rate(row.rate) },
      { name: "eta", label: "Catches up", width: "112px", align: "right", hideNarrow: true, title: "At the rates of the last ten seconds", cell: (row) => catchUp(row) },
      { name: "commit", label: "Last commit", width: "112px", align: "right", sortable: true, sortsDescending: true, hideNarrow: true, cell: (row) => h("span", { title: format.time(row.last_commit_ts) }, format.age(row.last_commit_ts)) },
    ],
  });
  const search = searchField(view, { label: "Groups whose name or topic contains", placeholder: "Find a group or topic…", onchange: show });
  const create = scopedButton(["admin"], "New group", () => openCreateGroup(refresh), { kind: "primary", iconName: "plus" });
  view.head("Consumer groups", { about: "Cursors that the server keeps. Lag is the number of seqs between a group and the head.", controls: [search.element, create] });
  view.list = table;
  view.root.append(table.element, foot);
  table.setRows([]);

  function show() {
    const text = search.field.value.trim();
    const found = rows.filter((row) => row.group.includes(text) || row.topic.includes(text));
    const direction = sort.isDescending ? -1 : 1;
    const value = VALUES[sort.name];
    found.sort((one, other) => direction * (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0) || (one.group < other.group ? -1 : 1));
    table.setRows(found);
    const late = rows.filter((row) => row.lag > LAG_HIGH).length;
    clear(foot, h("span", format.plural(rows.length, "group")), h("span", note || (late ? `${format.plural(late, "group")} with a lag above ${format.count(LAG_HIGH)}` : "")));
  }

  /** The table may have kept a row of an earlier reading: the dialog shows the newest one. */
  function move(row) {
    openMoveGroup(rows.find((each) => each.topic === row.topic && each.group === row.group) ?? row, refresh);
  }

  async function refresh() {
    const list = await readAll("/v0/topics", "topics", { query: { has_groups: true }, signal: view.signal, max: TOPICS_MAX });
    noteHeads(list.entries);
    const wanted = list.entries.toSorted((one, other) => other.groups.lag_max - one.groups.lag_max).slice(0, TOPICS_READ_MAX);
    const lists = await inParts(wanted, (topic) => groupsOf(topic.topic, view.signal));
    rows = lists.flat();
    note = list.entries.length > wanted.length || list.hasMore ? `Groups of the ${format.plural(wanted.length, "topic")} with the largest lags` : "";
    isLoaded = true;
    show();
  }

  view.every(REFRESH_MS, refresh);
}

function nothing(text, refresh) {
  if (text.trim()) return empty("No group matches", `No group or topic has “${format.visible(text.trim())}” in its name.`);
  const make = scopedButton(["admin"], "New group", () => openCreateGroup(refresh), { kind: "primary" });
  return empty("No consumer groups", "A group is a named cursor: a reader commits how far it is, and goes on there after a restart.", make);
}

/** A few calls at a time. */
async function inParts(values, task) {
  const done = [];
  for (let place = 0; place < values.length; place += AT_ONCE) done.push(...(await Promise.all(values.slice(place, place + AT_ONCE).map(task))));
  return done;
}

async function groupsOf(topic, signal) {
  let list;
  try {
    list = await api.get(api.path`/v0/topics/${topic}/groups`, { signal });
  } catch (error) {
    // The topic was deleted meanwhile.
    if (error.code === "topic_not_found") return [];
    throw error;
  }
  return list.groups.map((group) => {
    const key = `${topic}/${group.group}`;
    cursors.note(key, group.seq);
    return { ...group, topic, head_seq: list.head_seq, rate: cursors.rate(key) };
  });
}

function lagCell(row) {
  const part = row.head_seq ? 1 - row.lag / row.head_seq : 1;
  const tone = row.lag > LAG_HIGH ? "warn" : "";
  const fill = h("span.meter-fill", { class: tone });
  fill.style.width = `${Math.max(part, 0) * 100}%`;
  return h("span.lag", [h("span", { class: tone ? "warn-text" : "" }, format.count(row.lag)), h("span.meter.hide-narrow", { "aria-hidden": "true" }, fill)]);
}

/** When a group has everything, if it and the writers go on as in the last ten seconds. */
function catchUp(row) {
  if (row.lag === 0) return "is there";
  const writes = topicRate(row.topic);
  if (row.rate === null || writes === null) return "–";
  if (row.rate === 0) return "does not move";
  return row.rate <= writes ? "falls back" : `in ${format.span((row.lag / (row.rate - writes)) * 1000)}`;
}
