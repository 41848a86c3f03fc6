// Streams of the partitioned engine, down to partitions: streams, the topics of one, the partitions of one topic.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { readAll } from "../core/pages_of.js";
import { Rates } from "../core/rates.js";
import { go, link } from "../core/router.js";
import { badge } from "../parts/badge.js";
import { empty, problem } from "../parts/empty.js";
import { figureCard } from "../parts/figure.js";
import { Table } from "../parts/table.js";

const REFRESH_MS = 3000;
const STREAMS_MAX = 5000;

const messages = new Rates();

export function open(view) {
  const { stream, topic } = view.params;
  if (topic !== undefined) openTopic(view, stream, topic);
  else if (stream !== undefined) openStream(view, stream);
  else openStreams(view);
}

/** Shows the page while the streams can be read; else says why not. */
function follow(view, place, read) {
  view.every(REFRESH_MS, async () => {
    try {
      await read();
    } catch (error) {
      if (error.status !== 404 && error.status !== 403) throw error;
      clear(place, error.status === 404 && view.params.stream === undefined ? off() : problem(error));
    }
  });
}

function off() {
  return empty("This server has no streams", "Streams are the second engine: partitions, offsets and clients of Apache Iggy. To have them: pip install 'topics-log[streams]', and topics serve --streams.");
}

// All streams.

function openStreams(view) {
  view.head("Streams", { about: "Partitioned streams for clients of Apache Iggy. They are written on a port of their own, and looked at here." });
  const place = h("div.stack-wide");
  view.root.append(place);
  const table = new Table({
    label: "Streams",
    class: "fits",
    rowsMax: 18,
    rowKey: (row) => row.id,
    onOpen: (row) => go(streamAddress(row)),
    empty: () => empty("No streams yet", "A client of Apache Iggy creates the first one. topics demo makes one, too."),
    columns: [
      { name: "name", label: "Stream", width: "minmax(120px, 2fr)", cell: (row) => h("a", { href: streamAddress(row) }, format.visible(row.name)) },
      figure("Topics", (row) => format.count(row.topics)),
      figure("Messages/s", (row) => format.rate(messages.rate(`stream ${row.id}`))),
      figure("Messages", (row) => format.count(row.messages)),
      figure("Size", (row) => format.bytes(row.bytes), true),
      created(),
    ],
  });
  view.list = table;
  follow(view, place, async () => {
    const list = await readAll("/v0/streams", "streams", { signal: view.signal, max: STREAMS_MAX });
    for (const stream of list.entries) messages.note(`stream ${stream.id}`, stream.messages);
    table.setRows(list.entries);
    if (table.element.parentNode !== place) clear(place, table.element);
  });
}

// A name of digits would be read as a number, so such streams are asked for by their number.
function nameOrId(entry) {
  return /^\d+$/.test(entry.name) ? String(entry.id) : entry.name;
}

function streamAddress(row) {
  return link("/streams/:stream", { stream: nameOrId(row) });
}

// One stream.

function openStream(view, stream) {
  view.head(format.visible(stream), { trail: [["Streams", link("/streams")]] });
  const place = h("div.stack-wide");
  view.root.append(place);
  const address = (row) => link("/streams/:stream/:topic", { stream, topic: nameOrId(row) });
  const table = new Table({
    label: "Topics of the stream",
    class: "fits",
    rowsMax: 18,
    rowKey: (row) => row.id,
    onOpen: (row) => go(address(row)),
    empty: () => empty("No topics in this stream", "A client of Apache Iggy creates them."),
    columns: [
      { name: "name", label: "Topic", width: "minmax(120px, 2fr)", cell: (row) => h("a", { href: address(row) }, format.visible(row.name)) },
      figure("Partitions", (row) => format.count(row.partitions)),
      figure("Messages/s", (row) => format.rate(messages.rate(`${stream}/${row.id}`))),
      figure("Messages", (row) => format.count(row.messages)),
      figure("Size", (row) => format.bytes(row.bytes), true),
      created(),
    ],
  });
  view.list = table;
  follow(view, place, async () => {
    const state = await api.get(api.path`/v0/streams/${stream}`, { signal: view.signal });
    for (const topic of state.topics) messages.note(`${stream}/${topic.id}`, topic.messages);
    table.setRows(state.topics);
    if (table.element.parentNode !== place) clear(place, table.element);
  });
}

// One topic of a stream.

function openTopic(view, stream, topic) {
  view.head(format.visible(topic), { trail: [["Streams", link("/streams")], [format.visible(stream), link("/streams/:stream", { stream })]] });
  const place = h("div.stack-wide");
  const figures = h("div.figures.four");
  const groups = h("section.card");
  view.root.append(place);
  const address = (row) => link("/streams/:stream/:topic/:partition", { stream, topic, partition: String(row.id) });
  const table = new Table({
    label: "Partitions",
    class: "fits",
    rowsMax: 12,
    rowKey: (row) => row.id,
    onOpen: (row) => go(address(row)),
    columns: [
      { name: "id", label: "Partition", width: "minmax(96px, 1fr)", cell: (row) => h("a", { href: address(row) }, String(row.id)) },
      { name: "state", label: "State", width: "112px", hideNarrow: true, cell: (row) => (row.is_writable ? badge("takes messages", "good") : badge("stopped", "bad", "It takes no messages until a restart")) },
      figure("Oldest offset", (row) => format.count(row.earliest_offset), true),
      figure("Next offset", (row) => format.count(row.end_offset)),
      figure("Messages", (row) => format.count(row.messages)),
      figure("Unsaved", (row) => format.count(row.unsaved_messages), true),
      figure("Size", (row) => format.bytes(row.bytes), true),
      figure("Files", (row) => format.count(row.segments), true),
    ],
  });
  view.list = table;
  follow(view, place, async () => {
    const state = await api.get(api.path`/v0/streams/${stream}/topics/${topic}`, { signal: view.signal });
    messages.note(`${stream}/${state.id}`, state.messages);
    clear(figures, topicFigures(state, messages.rate(`${stream}/${state.id}`)));
    clear(groups, h("h2", "Consumer groups"), groupList(state.groups));
    table.setRows(state.partitions);
    if (table.element.parentNode !== place) clear(place, figures, table.element, groups);
  });
}

function topicFigures(state, rate) {
  const unsaved = state.partitions.reduce((sum, partition) => sum + partition.unsaved_messages, 0);
  return [
    figureCard("Messages", format.short(state.messages), "", `${format.rate(rate)} a second`),
    figureCard("Size", format.bytes(state.bytes), "", state.max_bytes === null ? "No limit" : `At most ${format.bytes(Number(state.max_bytes))}`),
    figureCard("Messages expire", state.message_expiry_us === null ? "never" : `after ${format.span(Number(state.message_expiry_us) / 1000)}`, "", `Compression: ${state.compression}`),
    figureCard("Only in memory", format.count(unsaved), "", unsaved ? "A kill of the process takes these messages" : "Every message is in a file"),
  ];
}

function groupList(groups) {
  if (groups.length === 0) return h("p.muted", "No client has made a group.");
  return h("dl.totals", groups.map((group) => h("div", [h("dt", format.visible(group.name)), h("dd", group.members ? format.plural(group.members, "client") : "no client now")])));
}

function figure(label, cell, hideNarrow = false) {
  return { name: label, label, width: "104px", narrowWidth: "76px", align: "right", hideNarrow, cell };
}

function created() {
  return { name: "created", label: "Created", width: "148px", align: "right", hideNarrow: true, cell: (row) => format.time(row.created_at / 1000).slice(0, 16) };
}
