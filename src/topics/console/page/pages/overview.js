// The server at a glance: what comes in, what goes out, what a power cut would take now, and what runs out next.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { difference, quantile } from "../core/quantiles.js";
import { go, link } from "../core/router.js";
import * as samples from "../core/samples.js";
import { can } from "../core/session.js";
import { noteHeads, topicRate } from "../core/topic_rates.js";
import { durabilityBadge } from "../parts/badge.js";
import { Chart } from "../parts/chart.js";
import { empty } from "../parts/empty.js";
import { figureCard } from "../parts/figure.js";
import { meter } from "../parts/meter.js";
import { Table } from "../parts/table.js";

const TOPICS_MS = 5000;
const TOPICS_LISTED = 500;
const TOP_MAX = 8;
// A shorter history says nothing about when a disk is full.
const TREND_MS_MIN = 60_000;
const READS = ["diff", "frames", "watch_stream", "claim", "work", "get_stream_messages"];

export function open(view) {
  view.head("Overview", { about: "What the server does now. Figures are of the last ten seconds, charts of the last ten minutes." });
  if (!can("read")) {
    view.root.append(empty("This key may not read metrics", "Figures need a key with the scope read."));
    return;
  }
  const figures = h("div.figures");
  const writes = new Chart({ label: "Records written a second", format: (value) => `${format.rate(value)}/s`, series: [{ name: "Records", tone: "accent" }] });
  const traffic = new Chart({
    label: "Bytes a second",
    format: (value) => `${format.bytes(value)}/s`,
    smallestMax: 1024,
    isBytes: true,
    series: [
      { name: "Sent to clients", tone: "second" },
      { name: "Received", tone: "accent" },
    ],
  });
  const syncs = new Chart({ label: "Slowest percent of syncs (p99)", format: (value) => format.span(value), series: [{ name: "p99", tone: "warn" }] });
  const charts = h("div.chart-cards", [chartCard("Records written", writes), chartCard("Network", traffic), chartCard("Sync time, p99", syncs)]);
  const totals = h("dl.totals");
  const top = topTopics(view);
  view.root.append(figures, charts, h("div.halves", [top.element, h("section.card", [h("h2", "In this server"), totals])]));

  samples.newest.follow((reading) => {
    if (reading === null) return;
    clear(figures, figureCards(reading));
    writes.draw([samples.rates((metrics) => metrics.traffic.append_records)]);
    traffic.draw([samples.rates((metrics) => metrics.traffic.sent_bytes), samples.rates((metrics) => metrics.traffic.received_bytes)]);
    syncs.draw([syncTimes(0.99)]);
    clear(totals, totalRows(reading.metrics));
  }, view.signal);
  view.every(TOPICS_MS, top.refresh);
}

function chartCard(title, chart) {
  return h("section.card", [h("h2", title), chart.element]);
}

function figureCards({ metrics }) {
  const reads = (each) => READS.reduce((sum, route) => sum + (each.traffic.requests[route] ?? 0), 0);
  return [
    figureCard("Writes", format.rate(samples.recentRate((each) => each.traffic.append_records)), "records/s", `${format.bytes(samples.recentRate((each) => each.traffic.append_bytes) ?? 0)}/s`),
    figureCard("Reads", format.rate(samples.recentRate(reads)), "requests/s", `${format.bytes(samples.recentRate((each) => each.traffic.sent_bytes) ?? 0)}/s sent`),
    syncFigure(metrics),
    lossFigure(metrics),
    diskFigure(metrics),
    pressureFigure(metrics),
  ];
}

function syncFigure(metrics) {
  const { bounds, groups } = recentSyncs(metrics);
  const p50 = quantile(bounds, groups, 0.5);
  const p99 = quantile(bounds, groups, 0.99);
  if (p50 === null) return figureCard("Sync time", "–", "", "No sync of the log yet");
  return figureCard("Sync time", format.span(p50 / 1000), "p50", `p99 ${format.span(p99 / 1000)}`);
}

function lossFigure(metrics) {
  const { unsynced_bytes: lost, unsynced_ms: ageMs, read_only: isReadOnly } = metrics.wal;
  if (isReadOnly) return figureCard("A power cut now takes", "Read-only", "", "A write or sync of the log failed: restart the server", { tone: "bad" });
  if (lost === 0) return figureCard("A power cut now takes", "Nothing", "", "Every write is on the disk");
  return figureCard("A power cut now takes", format.bytes(lost), "", `The oldest was written ${format.span(ageMs)} ago`, { tone: ageMs > 1000 ? "warn" : "" });
}

function diskFigure(metrics) {
  if (!metrics.disk) return figureCard("Disk", "–", "", "Not measured");
  const { free_bytes: free, total_bytes: total } = metrics.disk;
  const part = free / total;
  const tone = part < 0.05 ? "bad" : part < 0.15 ? "warn" : "";
  return figureCard("Disk", format.bytes(free), "free", fullIn(free), { tone, extra: meter(1 - part, `${format.percent(total - free, total)} of the disk is used`, tone) });
}

/** When the disk will be full, if it goes on filling as in the last ten minutes. */
function fullIn(free) {
  const points = samples.gauges((metrics) => metrics.disk?.free_bytes);
  const [first, last] = [points[0], points.at(-1)];
  if (first === undefined || last[0] - first[0] < TREND_MS_MIN) return "Full when? Known after a minute";
  const perMs = (first[1] - last[1]) / (last[0] - first[0]);
  return perMs <= 0 ? "Not filling up" : `Full in ${format.span(free / perMs)} at this rate`;
}

function pressureFigure(metrics) {
  const { pressure } = metrics;
  const tone = pressure >= 0.9 ? "bad" : pressure >= 0.5 ? "warn" : "";
  const backlog = `${format.bytes(metrics.wal.backlog_bytes)} of log to read at a restart, ${format.plural(metrics.wal.queue_depth, "write")} waiting`;
  return figureCard("Pressure", `${Math.round(pressure * 100)}`, "%", backlog, { tone, extra: meter(pressure, "Load of the server", tone) });
}

/** Syncs of the last minute, or all since the start if there was none in the last minute. */
function recentSyncs(metrics) {
  const readings = samples.allReadings();
  const last = readings.at(-1);
  const first = readings.find((reading) => reading.at >= last.at - 60_000);
  const groups = difference(metrics.wal.fsync_buckets, first.metrics.wal.fsync_buckets);
  const isSome = groups.some((count) => count > 0);
  return { bounds: metrics.wal.fsync_bounds_us, groups: isSome ? groups : metrics.wal.fsync_buckets };
}

function syncTimes(q) {
  const readings = samples.allReadings();
  const points = [];
  let known = 0;
  for (let place = 1; place < readings.length; place += 1) {
    const { wal } = readings[place].metrics;
    const time = quantile(wal.fsync_bounds_us, difference(wal.fsync_buckets, readings[place - 1].metrics.wal.fsync_buckets), q);
    // Without a sync the line goes on at the last height.
    known = time === null ? known : time / 1000;
    points.push([readings[place].at, known]);
  }
  return points;
}

function totalRows(metrics) {
  const rows = [
    ["Topics", format.count(metrics.topics)],
    ["Durability", classes(metrics)],
    ["Live records", format.count(metrics.records_live)],
    ["Live bytes", format.bytes(metrics.bytes_live)],
    ["Queues", format.count(metrics.queue_topics)],
    ["Leased jobs", format.count(metrics.queue_leases_in_flight)],
    ["Routers", format.count(metrics.routers)],
    ["Open streams", format.count(metrics.sse_connections)],
    ["Connections", format.count(metrics.traffic.connections_open)],
    ["Failed requests", format.count(metrics.traffic.errors)],
    ["Running for", format.span(metrics.uptime_ms)],
  ];
  return rows.map(([label, value]) => h("div", [h("dt", label), h("dd", value)]));
}

function classes(metrics) {
  const given = ["fsync", "disk", "memory", "ephemeral"].filter((name) => metrics[`topics_${name}`] > 0);
  return given.length ? h("span.row", given.map((name) => h("span.row", [format.count(metrics[`topics_${name}`]), durabilityBadge(name)]))) : "–";
}

function topTopics(view) {
  const note = h("p.muted.small");
  const table = new Table({
    label: "Busiest topics",
    class: "top-topics",
    rowKey: (row) => row.topic,
    onOpen: (row) => go(link("/topics/:topic", row)),
    empty: () => empty("No topics yet", "The first write creates one. The console can write, too: see Topics.", h("a.button", { href: link("/topics") }, "Go to the topics")),
    columns: [
      { name: "topic", label: "Topic", width: "minmax(120px, 2fr)", cell: (row) => h("a", { href: link("/topics/:topic", row) }, row.topic) },
      { name: "rate", label: "Records/s", align: "right", width: "88px", cell: (row) => format.rate(topicRate(row.topic)) },
      { name: "count", label: "Records", align: "right", width: "96px", cell: (row) => format.short(row.count), hideNarrow: true },
      { name: "bytes", label: "Size", align: "right", width: "88px", cell: (row) => format.bytes(row.bytes) },
    ],
  });
  view.list = table;
  async function refresh() {
    const list = await api.get("/v0/topics", { query: { page_size: TOPICS_LISTED }, signal: view.signal });
    noteHeads(list.topics);
    const busiest = list.topics.toSorted((one, other) => (topicRate(other.topic) ?? 0) - (topicRate(one.topic) ?? 0) || other.bytes - one.bytes);
    table.setRows(busiest.slice(0, TOP_MAX));
    note.textContent = list.next_cursor ? `Of the first ${format.count(TOPICS_LISTED)} names` : "";
  }
  return { element: h("section.card", [h("div.card-head", [h("h2", "Busiest topics"), note]), table.element]), refresh };
}
