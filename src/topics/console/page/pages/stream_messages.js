// The messages of a partition, in pages. Reading here stores no offset: no consumer is moved.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import { textOf } from "../core/exact_json.js";
import * as format from "../core/format.js";
import { link } from "../core/router.js";
import { button } from "../parts/button.js";
import { openDialog } from "../parts/dialog.js";
import { empty } from "../parts/empty.js";
import { payload } from "../parts/payload.js";
import { Table } from "../parts/table.js";

const COUNT = 100;
const PREVIEW_CHARACTERS = 200;
const HEX_BYTES_MAX = 4096;

export function open(view) {
  const { stream, topic, partition } = view.params;
  const where = api.path`/v0/streams/${stream}/topics/${topic}/partitions/${partition}/messages`;
  const place = h("div");
  const note = h("span", { role: "status" });
  const offset = h("input.field", { type: "number", min: "0", "aria-label": "Offset of the first message", placeholder: "Offset", "data-search": true, onkeydown: (event) => event.key === "Enter" && show({ offset: offset.value }) });
  const older = button("Older", () => show({ offset: String(Math.max(first - COUNT, 0)) }));
  const newer = button("Newer", () => show({ offset: String(next) }));
  view.head(`Partition ${partition}`, {
    trail: [
      ["Streams", link("/streams")],
      [format.visible(stream), link("/streams/:stream", { stream })],
      [format.visible(topic), link("/streams/:stream/:topic", { stream, topic })],
    ],
    about: "Reading here moves no consumer.",
    controls: [h("div.offset", offset), button("Go", () => show({ offset: offset.value })), button("Oldest", () => show({ offset: "0" })), older, newer, button("Newest", () => show({}), { kind: "primary" })],
  });
  const table = new Table({
    label: "Messages",
    class: "fits",
    rowsMax: 17,
    rowKey: (row) => String(row.offset),
    onOpen: openMessage,
    empty: () => empty("No messages here", "The partition has none from this offset on."),
    columns: [
      { name: "offset", label: "Offset", width: "104px", narrowWidth: "72px", cell: (row) => h("button.link-button", { type: "button", onclick: () => openMessage(row) }, format.count(row.offset)) },
      { name: "time", label: "Appended", width: "188px", hideNarrow: true, cell: (row) => format.time(Number(row.timestamp) / 1000) },
      { name: "headers", label: "Headers", width: "72px", align: "right", hideNarrow: true, cell: (row) => format.count(row.headers?.length ?? 0) },
      { name: "bytes", label: "Bytes", width: "80px", align: "right", cell: (row) => format.count(row.payload_bytes) },
      { name: "payload", label: "Payload", width: "minmax(140px, 4fr)", narrowWidth: "minmax(120px, 1fr)", cell: (row) => h("code.isolate", preview(row)) },
    ],
  });
  view.list = table;
  view.root.append(place, h("div.table-foot", note));
  let first = 0;
  let next = 0;

  function show(wanted) {
    view.setQuery({ offset: wanted.offset ?? "" });
    return view.load(place, async () => {
      const given = wanted.offset === undefined || wanted.offset === "" ? { last: true } : { offset: wanted.offset };
      const page = await api.get(where, { query: { ...given, count: COUNT }, exact: true, signal: view.signal });
      first = page.messages.length ? Number(page.messages[0].offset) : Number(wanted.offset ?? 0);
      next = Number(page.next_offset);
      table.setRows(page.messages);
      if (table.element.parentNode !== place) clear(place, table.element);
      older.disabled = first === 0;
      newer.disabled = next >= Number(page.end_offset);
      const shown = page.messages.length ? `Offsets ${format.count(first)} to ${format.count(next - 1)}` : "No messages";
      note.textContent = `${shown}; the next message gets ${format.count(Number(page.end_offset))}.`;
    });
  }

  show({ offset: view.query.get("offset") ?? undefined });
}

function preview(message) {
  const text = payloadText(message);
  return format.visible(text.length > PREVIEW_CHARACTERS ? `${text.slice(0, PREVIEW_CHARACTERS)}…` : text);
}

function payloadText(message) {
  if (message.payload !== undefined) return textOf(message.payload);
  if (message.payload_base64 !== undefined) return textOrHex(bytesOf(message.payload_base64));
  return "(too large for this page)";
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.codePointAt(0));
}

/** Bytes as text if they are UTF-8, else as hexadecimal digits. */
function textOrHex(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    const digits = [...bytes.slice(0, HEX_BYTES_MAX)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return bytes.length > HEX_BYTES_MAX ? `${digits} …` : digits;
  }
}

function openMessage(message) {
  const rows = [
    ["Offset", format.count(message.offset)],
    ["Id", String(message.id)],
    ["Appended", format.time(Number(message.timestamp) / 1000)],
    ["Sent", format.time(Number(message.origin_timestamp) / 1000)],
    ["Bytes", format.count(message.payload_bytes)],
    ...(message.headers ?? []).map((header) => [`Header ${format.visible(textOf(header.key) ?? header.key_base64)}`, h("span.isolate", `${format.visible(textOf(header.value) ?? header.value_base64)} (${header.kind})`)]),
  ];
  const shown =
    message.payload === undefined
      ? h("div.payload-body", h("pre.payload-text", { tabindex: "0", role: "group", "aria-label": "Payload" }, format.visible(payloadText(message))))
      : payload(textOf(message.payload), message.payload);
  openDialog({
    title: "Message",
    isWide: true,
    body: h("div.stack", [h("dl.totals", rows.map(([label, value]) => h("div", [h("dt", label), h("dd", value)]))), shown]),
    actions: [{ label: "Close" }],
  });
}
