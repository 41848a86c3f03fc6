// The dead letters of a queue: why each died, and redrive of one, of those selected, of those that match, or of all.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import { textOf } from "../core/exact_json.js";
import * as format from "../core/format.js";
import { go, link } from "../core/router.js";
import { labelled, scopedButton } from "../parts/button.js";
import { empty } from "../parts/empty.js";
import { Table } from "../parts/table.js";
import { openRedrive, redriveLog } from "./queue_redrive.js";

const PAGE_RECORDS = 200;
const LETTERS_MAX = 10_000;
const PREVIEW_CHARACTERS = 160;
const RIGHTS = ["read", "write", "delete"];

export class DeadLetters {
  #view;
  #queue;
  #onChange;
  #topic = null;
  #letters = [];
  #cursor = 0;
  #headSeq = 0;
  #isLoading = false;
  #isRead = false;
  // The last number of dead letters: a change reads the list again.
  #count = null;
  #chosen = new Set();

  /** `onChange` is called after a redrive. */
  constructor(view, queue, onChange) {
    this.#view = view;
    this.#queue = queue;
    this.#onChange = onChange;
    this.note = h("p.muted.small");
    const changed = () => this.#draw();
    this.tag = h("input.field", { type: "text", placeholder: "acme:* or a whole tag", spellcheck: "false", autocomplete: "off", oninput: changed });
    this.after = h("input.field", { type: "datetime-local", step: "1", oninput: changed });
    this.before = h("input.field", { type: "datetime-local", step: "1", oninput: changed });
    this.text = h("input.field", { type: "search", placeholder: "Reason or payload contains…", spellcheck: "false", oninput: changed });
    this.buttons = h("div.row");
    this.log = h("div");
    this.all = h("input", { type: "checkbox", "aria-label": "Select all letters that are shown", onchange: () => this.#chooseAll() });
    this.table = new Table({
      label: "Dead letters",
      class: "fits",
      rowsMax: 12,
      rowKey: (row) => row.$seq,
      onOpen: (row) => go(link("/topics/:topic", { topic: this.#topic }, { seq: row.$seq })),
      onNearEnd: () => this.#loadMore(),
      empty: () => this.#empty(),
      columns: [
        { name: "choose", label: this.all, width: "24px", cell: (row) => this.#checkbox(row) },
        { name: "seq", label: "Seq", width: "80px", hideNarrow: true, cell: (row) => h("a", { href: link("/topics/:topic", { topic: this.#topic }, { seq: row.$seq }) }, format.count(row.$seq)) },
        { name: "died", label: "Died", width: "92px", narrowWidth: "64px", cell: (row) => h("span", { title: format.time(row.$ts) }, format.age(row.$ts)) },
        { name: "reason", label: "Reason", width: "minmax(140px, 2fr)", narrowWidth: "minmax(90px, 1fr)", cell: (row) => reasonCell(row) },
        { name: "tag", label: "Tag", width: "minmax(80px, 1fr)", hideNarrow: true, cell: (row) => h("span.isolate", format.visible(row.$tag ?? "–")) },
        { name: "deliveries", label: "Deliveries", width: "80px", align: "right", hideNarrow: true, cell: (row) => row.meta?.$dead_letter_deliveries ?? "–" },
        { name: "data", label: "Payload", width: "minmax(120px, 2.4fr)", hideNarrow: true, cell: (row) => h("code.isolate", preview(row)) },
        { name: "one", label: h("span.unseen", "Actions"), width: "84px", align: "right", cell: (row) => scopedButton(RIGHTS, "Redrive", () => this.#redrive("one", [row.$seq]), { kind: "small" }) },
      ],
    });
    this.filters = h("div.letter-filters", [
      labelled("Tag", this.tag),
      labelled("Died from", this.after),
      labelled("Died before", this.before),
      labelled("Find in the list", this.text),
    ]);
    this.body = h("div.stack", [this.filters, this.buttons, this.table.element, this.log]);
    this.missing = h("div", { hidden: true });
    this.element = h("section.card", { id: "dead" }, [h("div.card-head", [h("h2", "Dead letters"), this.note]), this.body, this.missing]);
    redriveLog.follow(() => this.#drawLog(), view.signal);
  }

  /** Shows the letters of the queue; reads the list again if their number has changed. */
  show(state) {
    this.#topic = state.dead_letter;
    this.body.hidden = this.#topic === null;
    this.missing.hidden = this.#topic !== null;
    if (this.#topic === null) {
      const text = state.names_hidden ? "The name of the dead-letter topic is outside the prefixes of this key." : "Set dead_letter and max_deliveries of the queue: then a job that fails too often is kept there, with the reason.";
      clear(this.missing, empty(state.names_hidden ? "This key may not see the dead letters" : "This queue keeps no dead letters", text));
      return;
    }
    clear(this.note, ["In ", h("a", { href: link("/topics/:topic", { topic: this.#topic }) }, this.#topic)]);
    if (state.dead === this.#count && this.#isRead) {
      this.#draw();
      return;
    }
    this.#count = state.dead;
    this.#cursor = 0;
    this.#load(true);
  }

  get #isMore() {
    return this.#cursor < this.#headSeq;
  }

  async #loadMore() {
    if (this.#isRead && this.#isMore && this.#letters.length < LETTERS_MAX) await this.#load(false);
  }

  async #load(isFirst) {
    if (this.#isLoading) return;
    this.#isLoading = true;
    try {
      const where = api.path`/v0/topics/${this.#topic}/diff`;
      const page = await api.post(where, { from_seq: this.#cursor, limit: PAGE_RECORDS, include_tags: true }, { exact: true, signal: this.#view.signal });
      // Several queues may share the topic.
      const mine = page.records.filter((record) => (record.meta?.$dead_letter_from ?? this.#queue) === this.#queue);
      this.#letters = isFirst ? mine : [...this.#letters, ...mine];
      this.#cursor = page.next_from_seq;
      this.#headSeq = page.head_seq;
      this.#isRead = true;
    } catch (error) {
      if (error.name !== "AbortError" && error.code !== "topic_not_found" && !error.isOffline) throw error;
      this.#isRead = error.code === "topic_not_found";
    } finally {
      this.#isLoading = false;
    }
    const known = new Set(this.#letters.map((letter) => letter.$seq));
    for (const seq of this.#chosen) if (!known.has(seq)) this.#chosen.delete(seq);
    this.#draw();
  }

  // Which letters.

  /** What the server can filter by, as a body of a call; null if nothing is given. */
  get #filter() {
    const filter = {};
    const tag = this.tag.value.trim();
    if (tag) filter.match = tag;
    if (this.after.value) filter.from_ts = new Date(this.after.value).getTime();
    if (this.before.value) filter.to_ts = new Date(this.before.value).getTime();
    return Object.keys(filter).length ? filter : null;
  }

  #isShown(letter) {
    const filter = this.#filter ?? {};
    const tag = letter.$tag ?? "";
    const { match } = filter;
    if (match !== undefined && !(match.endsWith("*") ? tag.startsWith(match.slice(0, -1)) : tag === match)) return false;
    if (letter.$ts < (filter.from_ts ?? 0) || letter.$ts >= (filter.to_ts ?? Infinity)) return false;
    const text = this.text.value.trim().toLowerCase();
    return !text || `${reasonOf(letter)} ${textOf(letter.data)}`.toLowerCase().includes(text);
  }

  // Drawing.

  #draw() {
    const shown = this.#letters.filter((letter) => this.#isShown(letter));
    this.table.setRows(shown);
    const chosenShown = shown.filter((letter) => this.#chosen.has(letter.$seq)).length;
    this.all.checked = shown.length > 0 && chosenShown === shown.length;
    this.all.indeterminate = chosenShown > 0 && chosenShown < shown.length;
    this.all.disabled = shown.length === 0;
    const selected = this.#chosen.size;
    const isEmpty = this.#count === 0;
    clear(this.buttons, [
      scopedButton(RIGHTS, "Redrive all…", () => this.#redrive("all"), { kind: "primary", ...off(isEmpty) }),
      scopedButton(RIGHTS, "Redrive matching…", () => this.#redrive("filter"), off(isEmpty || this.#filter === null)),
      scopedButton(RIGHTS, selected ? `Redrive ${format.count(selected)} selected…` : "Redrive selected…", () => this.#redrive("selected", [...this.#chosen]), off(selected === 0)),
      h("span.muted.small.grow", { role: "status" }, this.#listed(shown.length)),
    ]);
  }

  #listed(shown) {
    if (!this.#isRead || this.#letters.length === 0) return "";
    const more = this.#isMore ? ", more follow as you scroll" : "";
    return shown === this.#letters.length ? `${format.plural(shown, "letter")} listed${more}` : `${format.count(shown)} of ${format.plural(this.#letters.length, "letter")} shown${more}`;
  }

  #drawLog() {
    const lines = redriveLog.value.filter((entry) => entry.queue === this.#queue);
    clear(this.log, lines.length ? h("div.audit", [h("h3", "Redrives of this session"), h("ol", lines.map((entry) => h("li", [h("time", format.time(entry.at).slice(0, 19)), " ", entry.text])))]) : null);
  }

  #empty() {
    if (!this.#isRead) return empty("Loading…", "");
    if (this.#letters.length === 0) return empty("No dead letters", "No job of this queue has failed too often.");
    return empty("No letter matches", "Change the filter to see more.");
  }

  // Selection.

  #checkbox(row) {
    const isChosen = this.#chosen.has(row.$seq);
    // The attribute makes the table draw the box again when it was changed from elsewhere.
    const box = h("input", { type: "checkbox", "aria-label": `Select letter ${row.$seq}`, checked: isChosen, "data-chosen": String(isChosen) });
    box.addEventListener("change", () => {
      if (box.checked) this.#chosen.add(row.$seq);
      else this.#chosen.delete(row.$seq);
      this.#draw();
    });
    return box;
  }

  #chooseAll() {
    for (const letter of this.table.rows) {
      if (this.all.checked) this.#chosen.add(letter.$seq);
      else this.#chosen.delete(letter.$seq);
    }
    this.#draw();
  }

  // Redrive.

  #redrive(kind, seqs = []) {
    openRedrive({
      queue: this.#queue,
      source: this.#topic,
      kind,
      seqs,
      filter: this.#filter,
      onDone: () => {
        this.#chosen.clear();
        this.#count = null;
        this.#onChange();
      },
    });
  }
}

function off(isOff) {
  return isOff ? { disabled: true } : {};
}

function reasonOf(letter) {
  return letter.meta?.$dead_letter_reason || "";
}

function reasonCell(letter) {
  const reason = reasonOf(letter);
  return reason ? h("span.isolate", { title: format.visible(reason) }, format.visible(reason)) : h("span.muted", "No reason was given");
}

function preview(letter) {
  const text = textOf(letter.data) ?? "";
  return format.visible(text.length > PREVIEW_CHARACTERS ? `${text.slice(0, PREVIEW_CHARACTERS)}…` : text);
}
