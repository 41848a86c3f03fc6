// One record in full, beside a list.

import { path } from "../core/api.js";
import { copy, curl } from "../core/clipboard.js";
import { clear, h } from "../core/dom.js";
import { textOf } from "../core/exact_json.js";
import { age, count, time, visible } from "../core/format.js";
import { link } from "../core/router.js";
import { button, iconButton } from "./button.js";
import { payload } from "./payload.js";

export class RecordDetail {
  constructor(topic, { onClose }) {
    this.topic = topic;
    this.element = h("aside.detail", { hidden: true, "aria-label": "Record" });
    this.onClose = onClose;
    this.closeButton = iconButton("close", "Close the record", () => this.hide());
    this.closeButton.dataset.close = "";
  }

  show(record) {
    const { topic } = this;
    const address = `${location.origin}/${link("/topics/:topic", { topic }, { seq: record.seq })}`;
    const command = curl("POST", path`/v0/topics/${topic}/diff`, { from_seq: record.seq - 1, limit: 1, include_tags: true });
    const rows = [
      ["Written", h("span", { title: age(record.ts) }, time(record.ts))],
      ["Tag", record.tag === null ? null : h("bdi", visible(record.tag))],
      ["Node", record.node === null ? null : h("bdi", visible(record.node))],
      ["Meta", record.metaText === null ? null : h("code.meta", visible(textOf(record.meta)))],
    ];
    clear(
      this.element,
      h("div.card-head", [h("h2", `Seq ${count(record.seq)}`), this.closeButton]),
      h("dl.facts", rows.filter(([, value]) => value !== null).map(([name, value]) => h("div", [h("dt", name), h("dd", value)]))),
      payload(record.dataText, record.data),
      h("div.row", [
        button("Copy data", () => copy(record.dataText, "Data"), { iconName: "copy" }),
        button("Copy as curl", () => copy(command, "Command")),
        button("Copy link", () => copy(address, "Link"), { iconName: "link" }),
      ]),
    );
    this.element.hidden = false;
  }

  hide() {
    if (this.element.hidden) return;
    this.element.hidden = true;
    this.onClose?.();
  }
}
