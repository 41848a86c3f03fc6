// All topics: searched by the beginning of their names, sorted, and loaded in pages while one scrolls.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { go, link } from "../core/router.js";
import { can, whyNot } from "../core/session.js";
import { noteHeads, topicRate } from "../core/topic_rates.js";
import { badge, durabilityBadge } from "../parts/badge.js";
import { scopedButton } from "../parts/button.js";
import { empty, problem } from "../parts/empty.js";
import { icon } from "../parts/icon.js";
import { Table } from "../parts/table.js";
import { openCreateTopic } from "./topic_create.js";

const PAGE_SIZE = 1000;
const REFRESH_MS = 3000;
// A sorted list has rows of many pages in view: each refresh reads a few of them again, those that are oldest.
const PAGES_REFRESHED = 4;
// Sorting by a figure loads all topics, up to this number.
const TOPICS_MAX = 100_000;

const VALUES = {
  topic: (row) => row.topic,
  head: (row) => row.head_seq,
  earliest: (row) => row.earliest_seq,
  count: (row) => row.count,
  bytes: (row) => row.bytes,
  rate: (row) => topicRate(row.topic) ?? -1,
  lag: (row) => row.groups?.lag_max ?? -1,
};

export function open(view) {
  view.root.classList.add("fills");
  const list = new TopicList(view);
  const search = h("input.field", {
    type: "search",
    placeholder: "Names that begin with…",
    "aria-label": "Topics whose names begin with",
    "data-search": true,
    spellcheck: "false",
    value: view.query.get("prefix") ?? "",
    oninput: () => list.search(search.value.trim()),
    onkeydown: (event) => event.key === "ArrowDown" && list.table.scroller.focus(),
  });
  const create = scopedButton(["admin"], "New topic", () => openCreateTopic(), { kind: "primary", iconName: "plus" });
  view.head("Topics", { controls: [h("div.search", [icon("search"), search]), create] });
  view.onQuery = (query) => {
    search.value = query.get("prefix") ?? "";
    list.search(search.value);
  };
  view.list = list.table;
  view.root.append(list.table.element, list.foot);
  list.search(search.value);
  view.every(REFRESH_MS, () => list.refresh());
}

class TopicList {
  #view;
  #prefix = "";
  // Pages as { cursor, until, readAt, rows }: names after the cursor, up to the name `until` (null for the last page).
  #pages = [];
  #nextCursor = "";
  #isLoading = false;
  #sort = { name: "topic", isDescending: false };
  // Each search has a number, so that an answer that comes late is left out.
  #turn = 0;
  #failure = null;

  constructor(view) {
    this.#view = view;
    this.foot = h("div.table-foot", { role: "status" });
    this.table = new Table({
      label: "Topics",
      rowKey: (row) => row.topic,
      sort: "topic",
      onSort: (name, isDescending) => this.#sortBy(name, isDescending),
      onOpen: (row) => go(link("/topics/:topic", row)),
      onNearEnd: () => this.#loadMore(),
      empty: () => this.#empty(),
      columns: [
        { name: "topic", label: "Topic", width: "minmax(160px, 3fr)", narrowWidth: "minmax(110px, 1fr)", sortable: true, cell: nameCell },
        { name: "durability", label: "Durability", width: "96px", cell: (row) => durabilityBadge(row.durability), hideNarrow: true },
        figureColumn("rate", "Records/s", "88px", (row) => format.rate(topicRate(row.topic))),
        figureColumn("count", "Records", "104px", (row) => format.count(row.count)),
        figureColumn("bytes", "Size", "88px", (row) => format.bytes(row.bytes), true),
        figureColumn("earliest", "Earliest seq", "112px", (row) => format.count(row.earliest_seq), true),
        figureColumn("head", "Head seq", "112px", (row) => format.count(row.head_seq), true),
        { ...figureColumn("lag", "Lag", "88px", lagText, true), title: "The largest lag of a consumer group" },
      ],
    });
  }

  search(prefix) {
    this.#turn += 1;
    this.#prefix = prefix;
    this.#pages = [];
    this.#nextCursor = "";
    this.#isLoading = false;
    this.#failure = null;
    this.#view.setQuery({ prefix });
    this.#loadMore();
  }

  /** Reads the pages that are in view again, so that their figures are of now. */
  async refresh() {
    const inView = new Set(this.table.inView());
    const turn = this.#turn;
    const pages = this.#pages.filter((each) => each.rows.some((row) => inView.has(row)));
    pages.sort((one, other) => one.readAt - other.readAt);
    for (const page of pages.slice(0, PAGES_REFRESHED)) {
      const rows = await this.#readAgain(page);
      if (turn !== this.#turn) return;
      page.rows = rows;
      page.readAt = Date.now();
    }
    if (this.#pages.length === 0) this.#loadMore();
    else this.#show();
  }

  async #loadMore() {
    if (this.#isLoading || this.#nextCursor === null) return;
    const turn = this.#turn;
    this.#isLoading = true;
    try {
      do {
        const cursor = this.#nextCursor;
        const list = await this.#read(cursor);
        if (turn !== this.#turn) return;
        this.#nextCursor = list.next_cursor ?? null;
        this.#pages.push({ cursor, until: list.next_cursor ? list.topics.at(-1).topic : null, readAt: Date.now(), rows: list.topics });
        this.#failure = null;
        this.#drawFoot();
      } while (this.#needsAll && this.#nextCursor !== null && this.#count < TOPICS_MAX);
    } catch (error) {
      if (turn !== this.#turn || error.name === "AbortError") return;
      this.#failure = error;
    }
    this.#isLoading = false;
    this.#show();
  }

  /** The rows of a page as they are now. Topics may have come and gone, so a page may need more than one read. */
  async #readAgain(page) {
    const rows = [];
    let cursor = page.cursor;
    do {
      const list = await this.#read(cursor);
      rows.push(...list.topics);
      cursor = list.next_cursor ?? null;
    } while (cursor !== null && page.until !== null && rows.at(-1).topic < page.until);
    if (page.until !== null) return rows.filter((row) => row.topic <= page.until);
    if (cursor !== null) {
      page.until = rows.at(-1).topic;
      this.#nextCursor = cursor;
    }
    return rows;
  }

  async #read(cursor) {
    const list = await api.get("/v0/topics", { query: { prefix: this.#prefix, page_size: PAGE_SIZE, cursor }, signal: this.#view.signal });
    noteHeads(list.topics);
    return list;
  }

  get #needsAll() {
    return this.#sort.name !== "topic" || this.#sort.isDescending;
  }

  get #count() {
    return this.#pages.reduce((sum, page) => sum + page.rows.length, 0);
  }

  #sortBy(name, isDescending) {
    this.#sort = { name, isDescending };
    this.table.scroller.scrollTop = 0;
    if (this.#needsAll && this.#nextCursor !== null) this.#loadMore();
    this.#show();
  }

  #show() {
    const rows = this.#pages.flatMap((page) => page.rows);
    if (this.#needsAll) {
      const value = VALUES[this.#sort.name];
      const direction = this.#sort.isDescending ? -1 : 1;
      rows.sort((one, other) => direction * (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0));
    }
    this.table.setRows(rows);
    this.#drawFoot();
  }

  #drawFoot() {
    const text = `${format.plural(this.#count, "topic")}${this.#nextCursor === null ? "" : " loaded, more follow"}`;
    clear(this.foot, h("span", text), this.#needsAll && this.#nextCursor !== null ? h("span", this.#count < TOPICS_MAX ? "Loading all topics to sort them…" : `Sorted among the first ${format.count(TOPICS_MAX)} names`) : null);
  }

  #empty() {
    if (this.#failure) return problem(this.#failure, () => this.#loadMore());
    if (this.#nextCursor === "") return empty("Loading…", "");
    if (!can("read")) return empty("This key may not list topics", whyNot("read"));
    if (this.#prefix) return empty("No topic begins so", `No name begins with “${format.visible(this.#prefix)}”. Names are matched from their first letter.`);
    return empty("No topics yet", "The first write creates a topic. Create one here to choose its durability first.", scopedButton(["admin"], "New topic", () => openCreateTopic(), { kind: "primary" }));
  }
}

function figureColumn(name, label, width, cell, hideNarrow = false) {
  return { name, label, width, cell, hideNarrow, align: "right", sortable: true, sortsDescending: true };
}

function nameCell(row) {
  return h("span.name-cell", [h("a", { href: link("/topics/:topic", row) }, row.topic), row.type === "queue" ? badge("queue", "accent") : null]);
}

function lagText(row) {
  return row.groups ? format.count(row.groups.lag_max) : "–";
}
