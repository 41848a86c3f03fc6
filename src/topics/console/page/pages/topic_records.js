// The record browser of a topic: both directions, filters, and one record in full.
//
// The server reads by seq. Filters by tag, node and payload are applied here, page by page; the line below the list says how many seqs
// were looked at.

import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { CONDITION_HELP, makeFilter } from "../core/record_filter.js";
import { readRange, seqAt, windowOf, withDeleted } from "../core/record_reader.js";
import { here } from "../core/router.js";
import { can } from "../core/session.js";
import { button, segmented } from "../parts/button.js";
import { empty, problem } from "../parts/empty.js";
import { RecordDetail } from "../parts/record_detail.js";
import { itemKey, recordTable } from "../parts/record_table.js";

const FOUND_STEP = 100;
// Seqs that a search looks at before it asks whether to go on.
const SCAN_STEP = 20_000;
// A link to a record shows a few newer ones above it.
const NEWER_SHOWN = 5;

export function openRecords(view, panel, shared, signal) {
  const browser = new Browser(view, shared, signal);
  view.list = browser.table;
  panel.append(browser.filters, h("div.split", [h("div.split-list", [browser.table.element, browser.foot]), browser.detail.element]));
  browser.begin(here().query);
}

class Browser {
  #view;
  #shared;
  #signal;
  #items = [];
  #filter = makeFilter({});
  #order = "newest";
  // Newest first: the last seq that was not read yet. Oldest first: the cursor.
  #next = 0;
  #isAtEnd = false;
  #isReading = false;
  #scanned = 0;
  #turn = 0;
  #failure = null;
  // The seq of a link, until it is shown.
  #wanted = null;
  // The head when the list began.
  #headSeen = 0;

  constructor(view, shared, signal) {
    this.#view = view;
    this.#shared = shared;
    this.#signal = signal;
    this.detail = new RecordDetail(shared.topic, { onClose: () => view.setQuery({ seq: "" }) });
    this.foot = h("div.table-foot", { role: "status" });
    this.table = recordTable({
      label: "Records",
      isQueue: shared.state.type === "queue",
      onOpen: (item) => this.#show(item),
      onNearEnd: () => this.#readMore(),
      empty: () => this.#empty(),
    });
    this.#makeFilters();
    shared.onState = () => this.#drawFoot();
  }

  #makeFilters() {
    const field = (name, label, placeholder, extra = {}) =>
      h("input.field", { type: "text", name, "aria-label": label, placeholder, spellcheck: "false", autocomplete: "off", ...extra, onchange: () => this.#apply() });
    this.fields = {
      at: field("at", "Go to a seq", "Go to seq", { inputmode: "numeric" }),
      time: field("time", "Go to a time", "", { type: "datetime-local", step: "1" }),
      tag: field("tag", "Only records with this tag", "Tag, or prefix*", { "data-search": true }),
      node: field("node", "Only records of this node", "Node"),
      path: field("path", "Only records whose payload matches", "Payload: total > 10", { title: CONDITION_HELP }),
    };
    this.order = segmented("Order", [["newest", "Newest"], ["oldest", "Oldest"]], "newest", (order) => {
      this.#order = order;
      this.#view.setQuery({ order: order === "newest" ? "" : order });
      this.#start();
    });
    this.complaint = h("p.dialog-problem", { role: "alert", hidden: true });
    this.filters = h("div.stack", [
      h("form.filters", { onsubmit: (event) => event.preventDefault() }, [this.order, ...Object.values(this.fields)]),
      this.complaint,
    ]);
  }

  /** Takes the state of the list from the address. */
  begin(query) {
    for (const name of ["tag", "node", "path", "at"]) this.fields[name].value = query.get(name) ?? "";
    this.#order = query.get("order") === "oldest" ? "oldest" : "newest";
    for (const [place, each] of [...this.order.children].entries()) each.setAttribute("aria-pressed", String((place === 0) === (this.#order === "newest")));
    const wanted = Number(query.get("seq"));
    if (wanted > 0) this.#start({ wanted });
    else this.#apply();
  }

  async #apply() {
    const { time, at } = this.fields;
    if (time.value) {
      const found = await seqAt(this.#shared.topic, this.#shared.state, new Date(time.value).getTime(), this.#signal);
      at.value = String(Math.min(found, this.#shared.state.head_seq));
      time.value = "";
    }
    this.#start();
  }

  #start({ wanted = null } = {}) {
    const values = Object.fromEntries(["tag", "node", "path", "at"].map((name) => [name, this.fields[name].value.trim()]));
    this.complaint.hidden = true;
    try {
      this.#filter = makeFilter(values);
    } catch (error) {
      this.complaint.textContent = error.message;
      this.complaint.hidden = false;
      return;
    }
    this.#view.setQuery(values);
    this.#turn += 1;
    this.#items = [];
    this.#isAtEnd = this.#isReading = false;
    this.#scanned = 0;
    this.#failure = null;
    this.#wanted = wanted;
    const { head_seq: head } = this.#shared.state;
    this.#headSeen = head;
    const at = Number(values.at) || null;
    if (this.#order === "newest") this.#next = Math.min(wanted === null ? (at ?? head) : wanted + NEWER_SHOWN, head);
    else this.#next = Math.max((wanted ?? at ?? 1) - 1, 0);
    this.table.setRows([]);
    this.table.scroller.scrollTop = 0;
    this.#readMore();
  }

  async #readMore() {
    if (this.#isReading || this.#isAtEnd || this.#failure) return;
    const turn = this.#turn;
    const foundBefore = this.#items.length;
    const scannedBefore = this.#scanned;
    this.#isReading = true;
    try {
      do {
        const items = this.#order === "newest" ? await this.#readOlder() : await this.#readNewer();
        if (turn !== this.#turn) return;
        this.#items.push(...(this.#filter.isOn ? items.filter((item) => item.kind === "record" && this.#filter.takes(item.record)) : items));
        this.#drawFoot();
      } while (!this.#isAtEnd && this.#items.length - foundBefore < (this.#filter.isOn ? FOUND_STEP : 1) && this.#scanned - scannedBefore < SCAN_STEP);
    } catch (error) {
      if (turn !== this.#turn || error.name === "AbortError") return;
      this.#failure = error;
    }
    this.#isReading = false;
    this.table.setRows(this.#items);
    this.#drawFoot();
    if (this.#wanted !== null) this.#showWanted(this.#wanted);
  }

  async #readOlder() {
    const { topic, state } = this.#shared;
    const until = this.#next;
    const from = Math.max(until - windowOf(state), 0);
    // Below the earliest record there are only gaps: one read from the start tells their reason.
    const cursor = from < state.earliest_seq ? 0 : from;
    const items = withDeleted(await readRange(topic, cursor, until, this.#signal), cursor + 1, until);
    this.#scanned += until - cursor;
    this.#next = cursor;
    this.#isAtEnd = cursor === 0;
    return items.reverse();
  }

  async #readNewer() {
    const { topic, state } = this.#shared;
    const cursor = this.#next;
    const until = Math.min(Math.max(cursor, state.earliest_seq - 1) + windowOf(state), state.head_seq);
    if (cursor >= until) {
      this.#isAtEnd = true;
      return [];
    }
    const items = withDeleted(await readRange(topic, cursor, until, this.#signal), cursor + 1, until);
    this.#scanned += until - cursor;
    this.#next = until;
    this.#isAtEnd = until >= this.#shared.state.head_seq;
    return items;
  }

  #show(item) {
    this.#view.setQuery({ seq: item.seq });
    this.detail.show(item.record);
    this.table.select(itemKey(item));
  }

  #showWanted(seq) {
    this.#wanted = null;
    const found = this.#items.find((item) => item.kind === "record" && item.seq === seq);
    if (found) this.#show(found);
    else {
      this.complaint.textContent = `Seq ${format.count(seq)} is not there: it was deleted or removed, or it is not written yet.`;
      this.complaint.hidden = false;
    }
  }

  #drawFoot() {
    const records = this.#items.filter((item) => item.kind === "record").length;
    const looked = this.#filter.isOn ? `${format.plural(records, "match", "matches")} in ${format.plural(this.#scanned, "seq")}` : format.plural(records, "record");
    const more = this.#isAtEnd ? (this.#order === "newest" ? ", up to the first seq" : ", up to the head") : "";
    const newer = this.#shared.state.head_seq - this.#headSeen;
    const isPaused = this.#filter.isOn && !this.#isAtEnd && !this.#isReading;
    clear(this.foot, h("span", `${looked}${more}`), this.#isReading ? h("span", "Reading…") : null, isPaused ? button("Look further", () => this.#readMore(), { kind: "quiet" }) : null, newer > 0 ? button(`Show ${format.plural(newer, "newer seq")}`, () => this.#start(), { kind: "quiet" }) : null);
  }

  #empty() {
    if (this.#failure) return problem(this.#failure, () => this.#start());
    if (this.#isReading) return empty("Reading…", "");
    if (this.#filter.isOn) return empty("No record matches", this.#isAtEnd ? "Every record was looked at." : `${format.plural(this.#scanned, "seq")} were looked at so far.`);
    return empty("No records", can("write") ? "Write the first one in the tab Write." : "Nothing was written to this topic yet.");
  }
}
