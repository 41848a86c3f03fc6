// The live tail: records as the server pushes them, with gaps in line.
//
// The list keeps the newest 5000 rows. Beyond 500 records a second further ones are counted and left out, with a row that says so. While the
// user reads further up, or has paused, the rows stay where they are.

import { clear, h } from "../core/dom.js";
import { follow } from "../core/events.js";
import * as format from "../core/format.js";
import { CONDITION_HELP, makeFilter } from "../core/record_filter.js";
import { recordsOf } from "../core/records.js";
import { badge } from "../parts/badge.js";
import { button } from "../parts/button.js";
import { empty, problem } from "../parts/empty.js";
import { RecordDetail } from "../parts/record_detail.js";
import { itemKey, recordTable } from "../parts/record_table.js";

export const ROWS_MAX = 5000;
export const RECORDS_PER_SECOND_MAX = 500;
const ROW_PX = 36;

export function openTail(view, panel, shared, signal) {
  const tail = new Tail(shared, signal);
  view.list = tail.table;
  panel.append(tail.controls, h("div.split", [h("div.split-list", [tail.table.element, tail.foot]), tail.detail.element]));
  tail.run(panel);
}

class Tail {
  #shared;
  #signal;
  #rows = [];
  // Rows that came while the tail was paused.
  #held = [];
  #isPaused = false;
  #state = "connecting";
  #received = 0;
  #filter = makeFilter({});
  #second = { at: 0, count: 0 };
  #skipped = null;
  #notices = 0;
  #isDrawing = false;

  constructor(shared, signal) {
    this.#shared = shared;
    this.#signal = signal;
    this.detail = new RecordDetail(shared.topic, { onClose: () => {} });
    this.foot = h("div.table-foot", { role: "status" });
    this.table = recordTable({
      label: "Live tail",
      isQueue: shared.state.type === "queue",
      onOpen: (item) => {
        this.detail.show(item.record);
        this.table.select(itemKey(item));
      },
      empty: () => empty("Waiting for records", "New records appear here as they are written."),
    });
    this.table.scroller.addEventListener("scroll", () => this.#drawFoot(), { passive: true });
    this.pauseButton = button("Pause", () => this.#togglePause(), { iconName: "pause" });
    this.stateBadge = h("span");
    const path = h("input.field", { type: "text", "aria-label": "Only records whose payload matches", placeholder: "Payload: total > 10", title: CONDITION_HELP, onchange: () => this.#applyFilter() });
    const tag = h("input.field", { type: "text", "aria-label": "Only records with this tag", placeholder: "Tag, or prefix*", "data-search": true, onchange: () => this.#applyFilter() });
    this.fields = { tag, path };
    this.complaint = h("p.dialog-problem", { role: "alert", hidden: true });
    this.controls = h("div.stack", [
      h("form.filters", { onsubmit: (event) => event.preventDefault() }, [this.pauseButton, button("Clear", () => this.#clear()), tag, path, this.stateBadge]),
      this.complaint,
    ]);
  }

  async run(panel) {
    this.table.setRows([]);
    const { topic } = this.#shared;
    const on = {
      state: (state) => {
        this.#state = state;
        this.#drawFoot();
      },
      record: (_, text) => this.#take(recordsOf(text)),
      tombstone: (data) => this.#add([{ kind: "tombstone", from: data.gap_from, to: data.gap_to, reason: data.reason }]),
      "topic-deleted": () => this.#add([this.#notice("The topic was removed.")]),
    };
    try {
      await follow({ [topic]: { tail: true } }, on, { signal: this.#signal });
    } catch (error) {
      if (!this.#signal.aborted) clear(panel, problem(error));
    }
  }

  #take(records) {
    this.#received += records.length;
    const items = [];
    for (const record of records) {
      if (!this.#filter.takes(record)) continue;
      if (this.#hasRoom()) {
        this.#skipped = null;
        items.push({ kind: "record", seq: record.seq, record });
      } else items.push(...this.#skip());
    }
    this.#add(items);
  }

  /** Whether the rate allows one more record in this second. */
  #hasRoom() {
    const now = performance.now();
    if (now - this.#second.at >= 1000) this.#second = { at: now, count: 0 };
    this.#second.count += 1;
    return this.#second.count <= RECORDS_PER_SECOND_MAX;
  }

  /** Counts a record that is left out. The first one makes a row. */
  #skip() {
    const isFirst = this.#skipped === null;
    this.#skipped ??= { ...this.#notice(""), count: 0 };
    this.#skipped.count += 1;
    this.#skipped.text = `${format.plural(this.#skipped.count, "record")} not shown: more than ${RECORDS_PER_SECOND_MAX} a second. They are in the log, see Records.`;
    return isFirst ? [this.#skipped] : [];
  }

  #notice(text) {
    this.#notices += 1;
    return { kind: "notice", id: this.#notices, text };
  }

  #add(items) {
    const rows = this.#isPaused ? this.#held : this.#rows;
    rows.push(...items);
    if (this.#isPaused && rows.length > ROWS_MAX) {
      rows.splice(0, rows.length - ROWS_MAX);
      if (rows[0].kind !== "notice") rows.unshift(this.#notice("Older records that came during the pause are not shown. They are in the log, see Records."));
    }
    this.#drawSoon();
  }

  #drawSoon() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    // Not by frames: a hidden tab has none, and its rows must stay bounded, too.
    setTimeout(() => {
      this.#isDrawing = false;
      if (!this.#signal.aborted) this.#draw();
    }, 50);
  }

  #draw() {
    const { scroller } = this.table;
    const follows = this.#isAtBottom();
    const dropped = Math.max(this.#rows.length - ROWS_MAX, 0);
    this.#rows.splice(0, dropped);
    const top = scroller.scrollTop;
    this.table.setRows(this.#rows);
    if (follows && !this.#isPaused) scroller.scrollTop = scroller.scrollHeight;
    else if (dropped) scroller.scrollTop = Math.max(top - dropped * ROW_PX, 0);
    this.#drawFoot();
  }

  #isAtBottom() {
    const { scrollTop, clientHeight, scrollHeight } = this.table.scroller;
    return scrollHeight - scrollTop - clientHeight < ROW_PX * 1.5;
  }

  #togglePause() {
    this.#isPaused = !this.#isPaused;
    clear(this.pauseButton, this.#isPaused ? `Go on` : "Pause");
    if (!this.#isPaused) {
      this.#rows.push(...this.#held);
      this.#held = [];
      this.#draw();
    }
    this.#drawFoot();
  }

  #clear() {
    this.#rows = [];
    this.#held = [];
    this.#skipped = null;
    this.detail.hide();
    this.#draw();
  }

  #applyFilter() {
    this.complaint.hidden = true;
    try {
      this.#filter = makeFilter({ tag: this.fields.tag.value.trim(), path: this.fields.path.value.trim() });
    } catch (error) {
      this.complaint.textContent = error.message;
      this.complaint.hidden = false;
    }
  }

  #drawFoot() {
    const [text, tone] = this.#isPaused ? ["paused", "warn"] : { live: ["live", "good"], connecting: ["connecting", "plain"], waiting: ["no answer", "bad"] }[this.#state];
    clear(this.stateBadge, badge(text, tone));
    const held = this.#held.length ? ` · ${format.plural(this.#held.length, "row")} waiting` : "";
    const jump = !this.#isPaused && this.#rows.length && !this.#isAtBottom() ? button("To the newest", () => this.#toBottom(), { kind: "quiet" }) : null;
    clear(this.foot, h("span", `${format.plural(this.#received, "record")} received · ${format.count(this.#rows.length)} of ${format.count(ROWS_MAX)} rows kept${held}`), jump);
  }

  #toBottom() {
    this.table.scroller.scrollTop = this.table.scroller.scrollHeight;
    this.#drawFoot();
  }
}
