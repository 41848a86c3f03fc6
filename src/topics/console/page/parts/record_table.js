// Records and the gaps between them, as rows of a table.

import { h } from "../core/dom.js";
import { clock, count, time, visible } from "../core/format.js";
import { icon } from "./icon.js";
import { Table } from "./table.js";

const REASONS = {
  cap: "removed by the cap of the topic",
  ttl: "expired by the age limit of the topic",
  mixed: "removed by cap and age limit",
  recreated: "of an earlier topic with this name",
  source_trim: "lost by the source of a router before they were copied",
  power_loss: "lost in a power cut or crash",
  corrupt: "damaged on disk",
};

export function reasonText(reason) {
  return REASONS[reason] ?? reason;
}

/** Items are those of core/record_reader.js, and { kind: "notice", id, text }. */
export function recordTable({ label, isQueue, onOpen, onNearEnd, empty }) {
  return new Table({
    label,
    rowKey: itemKey,
    onOpen: (item) => item.kind === "record" && onOpen(item),
    onNearEnd,
    empty,
    fullRow: (item) => fullRow(item, isQueue),
    class: "records",
    columns: [
      { name: "seq", label: "Seq", width: "84px", narrowWidth: "64px", align: "right", cell: (item) => count(item.seq) },
      { name: "time", label: "Time", width: "104px", narrowWidth: "92px", cell: (item) => h("span", { title: time(item.record.ts) }, clock(item.record.ts)) },
      { name: "tag", label: "Tag", width: "minmax(60px, 140px)", hideNarrow: true, cell: (item) => labelText(item.record.tag) },
      { name: "node", label: "Node", width: "minmax(50px, 96px)", hideNarrow: true, cell: (item) => labelText(item.record.node) },
      { name: "data", label: "Data", width: "minmax(0, 1fr)", cell: (item) => h("code.isolate", visible(item.record.preview)) },
    ],
  });
}

export function itemKey(item) {
  return item.kind === "record" ? item.seq : `${item.kind} ${item.from ?? item.id}`;
}

function labelText(text) {
  return text === null ? h("span.muted", "–") : h("bdi", { title: visible(text) }, visible(text));
}

function fullRow(item, isQueue) {
  if (item.kind === "record") return null;
  if (item.kind === "notice") return h("span.gap.notice", [icon("alert"), item.text]);
  const range = item.from === item.to ? `Seq ${count(item.from)}` : `Seqs ${count(item.from)} to ${count(item.to)}`;
  if (item.kind === "deleted") return h("span.gap.deleted", `${range}: ${isQueue ? "acked or deleted" : "deleted"}`);
  const number = item.to - item.from + 1;
  return h("span.gap.tombstone", [icon("alert"), h("b", range), ` · ${number === 1 ? "1 record" : `${count(number)} records`} ${reasonText(item.reason)}`]);
}
