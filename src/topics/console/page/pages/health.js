// Is the server well? Each fact with what it means and what to do, from figures that the server has; then its files.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { readAll } from "../core/pages_of.js";
import { difference, quantile } from "../core/quantiles.js";
import { link } from "../core/router.js";
import * as samples from "../core/samples.js";
import { can, session } from "../core/session.js";
import { badge } from "../parts/badge.js";
import { command } from "../parts/command.js";
import { empty } from "../parts/empty.js";

const REFRESH_MS = 5000;
const LAG_HIGH = 1000;
const SYNC_MS_HIGH = 100;
const NAMED_MAX = 3;
// What needs a hand comes first.
const ORDER = ["bad", "warn", "good", "plain"];
const WORDS = { good: "fine", warn: "look", bad: "act", plain: "note" };

export function open(view) {
  view.head("Health", { about: "What the server says about itself now. Each line names what to do if something is wrong." });
  if (!can("read")) {
    view.root.append(empty("This key may not read figures", "Health needs a key with the scope read."));
    return;
  }
  const summary = h("section.card.health-summary", { role: "status" });
  const list = h("section.card", h("p.muted", "Looking…"));
  const files = h("section.card", [
    h("h2", "The files"),
    h("p.muted", "The server does not read its files for this page. These commands do, on the machine of the server, also while it runs. They change nothing."),
    h("div.recipes", [
      h("div", [h("h3", "Every checksum, index and floor"), command("topics verify DATA_DIR")]),
      h("div", [h("h3", "What is wrong, and what can be done"), command("topics doctor DATA_DIR")]),
      h("div", [h("h3", "Can a backup be restored?"), command("topics backup check BACKUP")]),
    ]),
  ]);
  view.root.append(summary, list, files);

  view.every(REFRESH_MS, async () => {
    const ready = await readiness(view.signal);
    if (samples.newest.value === null) await samples.read();
    const reading = samples.newest.value;
    const lists = ready.isReady ? await readLists(view.signal) : null;
    const facts = [ready.fact, ...figuresOf(reading.metrics), ...(lists === null ? [] : factsOf(lists)), accessFact()];
    clear(summary, summaryOf(facts, reading.metrics));
    clear(list, h("h2", "Facts"), h("ul.facts", facts.toSorted((one, other) => ORDER.indexOf(one.tone) - ORDER.indexOf(other.tone)).map(factRow)));
  });
}

async function readiness(signal) {
  try {
    const ready = await api.get("/v0/ready", { signal });
    return { isReady: true, fact: fact("good", "Ready", `The log is recovered, and ${format.plural(ready.topics, "topic")} can be used.`) };
  } catch (error) {
    if (error.status !== 503) throw error;
    return { isReady: false, fact: fact("bad", "Not ready", error.message, "Wait until the log is recovered. If a write or sync has failed, look at the log of the server and restart it.") };
  }
}

async function readLists(signal) {
  const [queues, groups, routers] = await Promise.all([
    readAll("/v0/topics", "topics", { query: { type: "queue" }, signal, max: 2000 }),
    readAll("/v0/topics", "topics", { query: { has_groups: true }, signal, max: 2000 }),
    readAll("/v0/routers", "routers", { signal, max: 2000 }),
  ]);
  return { queues: queues.entries, groups: groups.entries, routers: routers.entries };
}

function fact(tone, title, text, advice = null, where = null) {
  return { tone, title, text, advice, where };
}

// Figures of the whole server.

function figuresOf(metrics) {
  return [writesFact(metrics.wal), lossFact(metrics.wal), syncFact(metrics), diskFact(metrics.disk), pressureFact(metrics), refusedFact(metrics), errorsFact(metrics.traffic), ...streamsFacts(metrics.streams)];
}

function writesFact(wal) {
  if (!wal.read_only) return fact("good", "Takes writes", `Writes that wait for their commit: ${format.count(wal.queue_depth)}.`);
  return fact("bad", "Read-only", "A write or sync of the log failed. Nothing more is written, so that nothing is lost silently.", "Free space or mend the disk, then restart the server.");
}

function lossFact(wal) {
  if (wal.unsynced_bytes === 0) return fact("good", "A power cut now takes nothing", "Every written byte is synced.");
  const tone = wal.unsynced_ms > 1000 ? "warn" : "plain";
  return fact(tone, `A power cut now takes ${format.bytes(wal.unsynced_bytes)}`, `The oldest was written ${format.span(wal.unsynced_ms)} ago, to topics of the classes memory and disk. Class fsync loses nothing.`, tone === "warn" ? "The disk is slow to sync: use class fsync for what must not be lost." : null);
}

function syncFact({ wal }) {
  const readings = samples.allReadings();
  const groups = difference(wal.fsync_buckets, readings[0]?.metrics.wal.fsync_buckets);
  const p99 = quantile(wal.fsync_bounds_us, groups.some(Boolean) ? groups : wal.fsync_buckets, 0.99);
  if (p99 === null) return fact("plain", "No sync yet", "Nothing was written to a class that syncs.");
  const ms = p99 / 1000;
  if (ms < SYNC_MS_HIGH) return fact("good", `Syncs take ${format.span(ms)} (p99)`, "A write of class fsync waits for one. One sync in a hundred takes longer.");
  return fact("warn", `Syncs take ${format.span(ms)} (p99)`, "Every write of class fsync waits that long.", "Use a disk of its own for the data directory, or one with a power-safe cache.");
}

function diskFact(disk) {
  if (!disk) return fact("plain", "Disk not measured", "The size of the disk is not known yet.");
  const part = disk.free_bytes / disk.total_bytes;
  const text = `${format.bytes(disk.free_bytes)} of ${format.bytes(disk.total_bytes)} are free.`;
  if (part >= 0.15) return fact("good", "Room on the disk", text);
  return fact(part < 0.05 ? "bad" : "warn", "The disk fills up", text, "Give topics a cap or a TTL, move segments to a cold tier, or enlarge the disk. A full disk refuses writes and loses none.");
}

function pressureFact({ pressure }) {
  const text = `Load ${Math.round(pressure * 100)} %.`;
  if (pressure < 0.5) return fact("good", "Not under pressure", text);
  return fact(pressure >= 0.9 ? "bad" : "warn", "Under pressure", `${text} The least urgent topics are slowed down first.`, "Batch writes, spread load, or use a faster machine.");
}

function refusedFact({ wal }) {
  if (wal.submit_full_total === 0) return fact("good", "No write was refused for load", "The commit queue was never full since the start.");
  return fact("warn", `${format.plural(wal.submit_full_total, "write")} were refused for load`, "Since the start. Clients get the status 429 and try again.", "Raise the number of WAL shards, or send larger batches.");
}

function errorsFact(traffic) {
  const [first] = samples.allReadings();
  const recent = traffic.errors - first.metrics.traffic.errors;
  const told = `Since the start: ${format.count(traffic.errors)} answers with a status of 500 or more (not ready counts, too), ${format.count(traffic.refusals)} from 400 to 499.`;
  if (recent <= 0) return fact("good", "No request fails in the server", `${told} None of the former since this console is open.`);
  return fact("warn", `${format.plural(recent, "request")} failed in the server`, `Since this console is open. ${told}`, "The log of the server names the reason of each.");
}

function streamsFacts(streams) {
  if (!streams) return [fact("plain", "Streams are off", "This server has the log only.")];
  const stopped = streams.stopped_partitions;
  if (stopped) return [fact("bad", `${format.plural(stopped, "partition")} stopped`, "A partition that could not be written takes no messages.", "Look at the log of the server, then restart it.", link("/streams"))];
  const unsaved = streams.unsaved_messages ? ` A kill of the process would take ${format.plural(streams.unsaved_messages, "message")}.` : "";
  return [fact("good", "Streams work", `Partitions that take messages: ${format.count(streams.partitions)}. Clients of Apache Iggy: ${format.count(streams.connections)}.${unsaved}`, null, link("/streams"))];
}

// Queues, groups and routers.

function factsOf({ queues, groups, routers }) {
  const dead = queues.filter((each) => each.queue.dead > 0);
  const late = groups.filter((each) => each.groups.lag_max > LAG_HIGH);
  const behind = routers.filter((each) => each.lag > LAG_HIGH);
  return [
    dead.length
      ? fact("warn", `${format.plural(dead.length, "queue")} with dead letters`, `${named(dead.map((each) => `${each.topic} ${format.count(each.queue.dead)}`))}.`, "See why, mend the worker, then redrive.", link("/queues/:queue", { queue: dead[0].topic }))
      : fact("good", "No dead letters", `${format.plural(queues.length, "queue")}, no job that failed too often.`, null, link("/queues")),
    late.length
      ? fact("warn", `Groups of ${format.plural(late.length, "topic")} are late`, `Lag above ${format.count(LAG_HIGH)}: ${named(late.map((each) => `${each.topic} ${format.count(each.groups.lag_max)}`))}.`, "Retention does not wait for a group: give its reader more time or hands.", link("/groups"))
      : fact("good", "No group is late", `${format.plural(groups.length, "topic")} with groups, no lag above ${format.count(LAG_HIGH)}.`, null, link("/groups")),
    behind.length
      ? fact("warn", `${format.plural(behind.length, "router")} behind`, named(behind.map((each) => `${each.router} ${format.count(each.lag)}`)), "A dest that is full, or a source in a cold tier that does not answer, holds a router back.", link("/routers"))
      : fact("good", "Routers are up to date", `${format.plural(routers.length, "router")}, no lag above ${format.count(LAG_HIGH)}.`, null, link("/routers")),
  ];
}

function named(texts) {
  const rest = texts.length - NAMED_MAX;
  return `${texts.slice(0, NAMED_MAX).join(", ")}${rest > 0 ? ` and ${format.count(rest)} more` : ""}`;
}

function accessFact() {
  if (session.value.needsKey) return fact("good", "Keys are needed", "A caller without a key gets nothing.");
  return fact("warn", "Open access", "Whoever reaches this port may do everything.", "Set TOPICS_API_KEYS before other machines can reach it.", link("/settings"));
}

// Drawing.

function summaryOf(facts, metrics) {
  const acts = facts.filter((each) => each.tone === "bad").length;
  const looks = facts.filter((each) => each.tone === "warn").length;
  const [tone, text] = acts ? ["bad", `${format.plural(acts, "thing")} to act on`] : looks ? ["warn", `Works; ${format.plural(looks, "thing")} to look at`] : ["good", "All is well"];
  return [h("span.health-light", { class: tone, "aria-hidden": "true" }), h("div", [h("p.health-title", text), h("p.muted", `Version ${session.value.version}, running for ${format.span(metrics.uptime_ms)}.`)])];
}

function factRow({ tone, title, text, advice, where }) {
  return h("li.fact", [
    badge(WORDS[tone], tone),
    h("div", [h("p.fact-title", where === null ? title : h("a", { href: where }, title)), h("p.muted", text), advice ? h("p.advice", advice) : null]),
  ]);
}
