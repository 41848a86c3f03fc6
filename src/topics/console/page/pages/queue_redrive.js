// The dialog of a redrive: a dry run first, then the move with its progress, then a line about what was done.

import { clear, h } from "../core/dom.js";
import { textOf } from "../core/exact_json.js";
import * as format from "../core/format.js";
import { rangesOf, redrive } from "../core/redrive.js";
import { Signal } from "../core/signal.js";
import { labelled } from "../parts/button.js";
import { openDialog } from "../parts/dialog.js";
import { meter } from "../parts/meter.js";
import { toast } from "../parts/toast.js";

const LOG_MAX = 50;
const SAMPLES_SHOWN = 5;

// What was redriven in this session of the console, the newest first: { at, queue, text }. The server logs each call, too.
export const redriveLog = new Signal([]);

/** `kind` is "one", "selected", "filter" or "all"; `seqs` are of the dead-letter topic; `filter` is a body of a call. */
export function openRedrive({ queue, source, kind, seqs, filter, onDone }) {
  const parts = kind === "all" ? [{}] : kind === "filter" ? [filter] : rangesOf(seqs);
  const stopping = new AbortController();
  const rate = h("input.field", { type: "number", min: "0", max: "1000000", value: "0" });
  const limit = h("input.field", { type: "number", min: "0", value: "0" });
  const found = h("div.stack", { role: "status" }, h("p.muted", "Counting the letters that match; nothing is moved yet…"));
  const pace = h("div.pair", [labelled("Jobs a second", rate, "0 = as fast as it goes"), labelled("Jobs at most", limit, "0 = all of them")]);
  const body = h("div.stack", [
    h("p", ["From ", h("code.name", source), " back into ", h("code.name", queue), `: ${whichText(kind, seqs, filter)}.`]),
    found,
    kind === "one" ? null : pace,
  ]);
  let matched = 0;
  const dialog = openDialog({
    title: "Redrive dead letters",
    body,
    isWide: true,
    actions: [
      { label: "Cancel", run: () => stopping.abort() },
      { label: "Redrive", kind: "primary", run },
    ],
  });
  dialog.closed.then(() => stopping.abort());
  const button = dialog.querySelector("button.primary");
  const cancel = dialog.querySelector("footer button");
  button.disabled = true;
  dryRun();

  async function dryRun() {
    try {
      const dry = await redrive(queue, parts, { isDry: true, signal: stopping.signal });
      if (stopping.signal.aborted) return;
      matched = dry.matched;
      clear(found, dryResult(dry));
      button.textContent = matched === 1 ? "Redrive 1 job" : `Redrive ${format.count(matched)} jobs`;
      button.disabled = matched === 0;
    } catch (error) {
      if (stopping.signal.aborted) return;
      clear(found, h("p.dialog-problem", { role: "alert" }, error.message));
    }
  }

  async function run() {
    const most = Math.max(Math.floor(Number(limit.value)) || 0, 0);
    const wanted = most ? Math.min(most, matched) : matched;
    // The buttons are off while an action runs. A redrive can be stopped: what was moved stays moved.
    cancel.disabled = false;
    cancel.textContent = "Stop";
    pace.hidden = true;
    const onProgress = ({ moved }) => clear(found, progress(moved, wanted));
    onProgress({ moved: 0 });
    let done;
    try {
      done = await redrive(queue, parts, { rate: Math.max(Math.floor(Number(rate.value)) || 0, 0), limit: most, onProgress, signal: stopping.signal });
    } finally {
      pace.hidden = false;
      cancel.textContent = "Cancel";
      onDone();
    }
    const text = resultText(done, queue, source, whichText(kind, seqs, filter));
    redriveLog.set([{ at: Date.now(), queue, text }, ...redriveLog.value].slice(0, LOG_MAX));
    toast(text);
    return done.stopped !== "full" || fullProblem(done);
  }
}

function fullProblem(done) {
  throw new Error(`The queue has no room for more: ${format.plural(done.moved, "job")} were moved. Raise its cap, or wait until workers have made room.`);
}

function whichText(kind, seqs, filter) {
  if (kind === "one") return `letter ${format.count(seqs[0])}`;
  if (kind === "selected") return `${format.plural(seqs.length, "selected letter")}`;
  if (kind === "all") return "all letters of this queue";
  const told = [];
  if (filter.match !== undefined) told.push(filter.match.endsWith("*") ? `whose tag begins with ${format.visible(filter.match.slice(0, -1))}` : `whose tag is ${format.visible(filter.match)}`);
  if (filter.from_ts !== undefined) told.push(`that died from ${format.time(filter.from_ts).slice(0, 19)}`);
  if (filter.to_ts !== undefined) told.push(`that died before ${format.time(filter.to_ts).slice(0, 19)}`);
  return `letters ${told.join(" and ")}`;
}

function dryResult(dry) {
  if (dry.matched === 0) return h("p", dry.skipped ? `No letter can be moved now: ${format.plural(dry.skipped, "letter")} are leased or delayed.` : "No letter matches. Nothing would be moved.");
  const skipped = dry.skipped ? ` ${format.plural(dry.skipped, "more")} are leased or delayed, and stay.` : "";
  return [
    h("p.dry-count", [h("strong", format.plural(dry.matched, "job")), ` would be moved. Deliveries are counted anew.${skipped}`]),
    h("ul.samples", { "aria-label": "The first jobs" }, dry.jobs.slice(0, SAMPLES_SHOWN).map(sample)),
    dry.matched > SAMPLES_SHOWN ? h("p.muted.small", `and ${format.count(dry.matched - SAMPLES_SHOWN)} more`) : null,
  ];
}

function sample(job) {
  const reason = job.meta?.$dead_letter_reason;
  return h("li", [h("span.muted", `${format.count(job.$seq)} `), reason ? h("span.isolate", `${format.visible(reason)} `) : null, h("code.isolate", format.visible((textOf(job.data) ?? "").slice(0, 120)))]);
}

function progress(moved, wanted) {
  return h("div.stack", [h("p", `${format.count(moved)} of ${format.plural(wanted, "job")} moved`), meter(wanted ? moved / wanted : 1, "Jobs that are moved")]);
}

function resultText(done, queue, source, which) {
  const ending = { end: "", limit: " (the limit was reached)", full: " (the queue is full)", stopped: " (stopped)" }[done.stopped];
  return `${format.plural(done.moved, "job")} moved from ${source} to ${queue}${ending}: ${which}.`;
}
