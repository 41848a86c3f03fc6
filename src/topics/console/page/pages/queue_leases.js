// The leases of a queue: which job, who holds it, until when; to extend one, or to give it back.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { link } from "../core/router.js";
import { labelled, scopedButton } from "../parts/button.js";
import { openDialog } from "../parts/dialog.js";
import { empty } from "../parts/empty.js";
import { meter } from "../parts/meter.js";
import { Table } from "../parts/table.js";
import { toast } from "../parts/toast.js";

const PAGE_SIZE = 100;
const PAGE_SIZE_MAX = 1000;
const ALMOST_OVER = 0.2;

export class Leases {
  #queue;
  #onChange;
  #leaseMs = 30_000;

  /** `onChange` is called after a lease was extended or released. */
  constructor(view, queue, onChange) {
    this.#queue = queue;
    this.#onChange = onChange;
    // How many leases a read asks for.
    this.pageSize = PAGE_SIZE;
    this.note = h("p.muted.small");
    this.more = h("button.button", { type: "button", hidden: true, onclick: () => this.#showMore() }, "Show more leases");
    this.table = new Table({
      label: "Leases",
      class: "fits",
      rowsMax: 8,
      rowKey: (row) => row.lease_id,
      empty: () => empty("No job is in flight", "A worker that claims a job appears here, with the time until its lease ends."),
      columns: [
        { name: "seq", label: "Job", width: "96px", narrowWidth: "64px", cell: (row) => h("a", { href: link("/topics/:topic", { topic: queue }, { seq: row.$seq }) }, format.count(row.$seq)) },
        { name: "node", label: "Holder", width: "minmax(120px, 2fr)", narrowWidth: "minmax(80px, 1fr)", cell: (row) => h("span.isolate", { title: format.visible(row.node) }, format.visible(row.node)) },
        { name: "deliveries", label: "Delivery", width: "80px", align: "right", hideNarrow: true, cell: (row) => format.count(row.deliveries) },
        { name: "until", label: "Ends", width: "112px", hideNarrow: true, cell: (row) => h("span", { title: format.time(row.deadline) }, format.clock(row.deadline).slice(0, 8)) },
        { name: "left", label: "Time left", width: "minmax(110px, 1fr)", narrowWidth: "72px", cell: (row) => this.#timeLeft(row) },
        { name: "actions", label: h("span.unseen", "Actions"), width: "196px", narrowWidth: "92px", align: "right", cell: (row) => this.#actions(row) },
      ],
    });
    this.element = h("section.card", [h("div.card-head", [h("h2", "Leases"), this.note]), this.table.element, h("div.row", this.more)]);
    view.list = this.table;
  }

  show(state, config) {
    this.#leaseMs = config.lease_ms;
    this.table.setRows(state.leases);
    this.note.textContent = state.next_cursor ? `The first ${format.count(state.leases.length)} of ${format.count(state.in_flight)}, by seq` : "";
    this.more.hidden = !state.next_cursor || this.pageSize >= PAGE_SIZE_MAX;
  }

  #showMore() {
    this.pageSize = PAGE_SIZE_MAX;
    this.more.hidden = true;
  }

  #timeLeft(row) {
    const leftMs = row.deadline - Date.now();
    const part = leftMs / Math.max(this.#leaseMs, leftMs);
    const tone = part < ALMOST_OVER ? "warn" : "";
    return h("span.time-left", [meter(part, "Part of the lease that is left", tone), h("span.small", { class: tone ? "warn-text" : "" }, leftMs > 0 ? format.span(Math.ceil(leftMs / 1000) * 1000) : "over")]);
  }

  #actions(row) {
    return h("span.row-actions", [
      scopedButton(["write"], "Extend", () => this.#extend(row), { kind: "small" }),
      scopedButton(["write"], "Release", () => this.#release(row), { kind: "small hide-narrow" }),
    ]);
  }

  #extend(row) {
    const seconds = h("input.field", { type: "number", min: "1", max: "86400", value: String(Math.round(this.#leaseMs / 1000)) });
    openDialog({
      title: `Extend the lease of job ${format.count(row.$seq)}`,
      body: h("div.stack", [
        h("p", [h("code.name", format.visible(row.node)), " keeps the job for longer. It is not told: its next ack or extension counts as usual."]),
        labelled("Seconds from now", seconds),
      ]),
      actions: [
        { label: "Cancel" },
        {
          label: "Extend",
          kind: "primary",
          run: async () => {
            const leaseMs = Math.round(Number(seconds.value) * 1000);
            const done = await api.post(api.path`/v0/topics/${this.#queue}/extend`, { ...held(row), lease_ms: leaseMs });
            if (done.skipped.length) throw new api.ApiError(409, "skipped", "The lease has ended meanwhile, so that there was nothing to extend.");
            this.#onChange();
            toast(`Job ${format.count(row.$seq)} is leased until ${format.clock(done.deadlines[row.$seq]).slice(0, 8)}.`);
          },
        },
      ],
    });
    seconds.focus();
  }

  #release(row) {
    const delay = h("input.field", { type: "number", min: "0", max: "86400", value: "0" });
    const reason = h("input.field", { type: "text", maxlength: "200", value: "released in the console" });
    openDialog({
      title: `Release job ${format.count(row.$seq)}`,
      body: h("div.stack", [
        h("p", [h("code.name", format.visible(row.node)), " loses the job, and another worker gets it. If its holder still works on it, the job is done twice: the ack of the first holder is skipped."]),
        labelled("Ready after seconds", delay),
        labelled("Reason", reason, "Kept with the job; a dead letter shows the last one."),
      ]),
      actions: [
        { label: "Cancel" },
        {
          label: "Release",
          kind: "danger",
          run: async () => {
            const done = await api.post(api.path`/v0/topics/${this.#queue}/nack`, { ...held(row), delay_ms: Math.round(Number(delay.value) * 1000), reason: reason.value });
            if (done.skipped.length) throw new api.ApiError(409, "skipped", "The lease has ended meanwhile, so that there was nothing to release.");
            this.#onChange();
            toast(`Job ${format.count(row.$seq)} is released.`);
          },
        },
      ],
    });
    delay.focus();
  }
}

/** The lease in the form of a call. Its id makes sure that it is this delivery, and not a later one of the same job. */
function held(row) {
  return { node: row.node, seqs: [row.$seq], lease_ids: [row.lease_id] };
}
