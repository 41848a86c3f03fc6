// Reads the records of a topic in both directions, with the gaps between them.
//
// Items of a list are { kind: "record", seq, record }, { kind: "tombstone", from, to, reason } and { kind: "deleted", from, to }:
// seqs that were deleted, or acked in a queue.

import * as api from "./api.js";
import { recordsOf } from "./records.js";

const SEQS_MAX = 200;
const WINDOW_BYTES = 1 << 20;

/** Items with from_seq < seq <= until_seq, ascending. */
export async function readRange(topic, fromSeq, untilSeq, signal) {
  const items = [];
  let cursor = fromSeq;
  while (cursor < untilSeq) {
    const body = { from_seq: cursor, limit: untilSeq - cursor, include_tags: true };
    const text = await api.call("POST", api.path`/v0/topics/${topic}/diff`, body, { asText: true, signal });
    const page = JSON.parse(text);
    if (page.tombstone) items.push({ kind: "tombstone", from: page.tombstone.gap_from, to: page.tombstone.gap_to, reason: page.tombstone.reason });
    for (const record of recordsOf(text)) if (record.seq <= untilSeq) items.push({ kind: "record", seq: record.seq, record });
    if (page.next_from_seq <= cursor) break;
    cursor = page.next_from_seq;
    if (page.caught_up) break;
  }
  return items;
}

/** Adds what is missing between the items: seqs from `first` to `last` that are no record and no tombstone. */
export function withDeleted(items, first, last) {
  const whole = [];
  let next = first;
  for (const item of items) {
    const [from, to] = item.kind === "record" ? [item.seq, item.seq] : [item.from, item.to];
    if (from > next) whole.push({ kind: "deleted", from: next, to: from - 1 });
    whole.push(item);
    next = Math.max(next, to + 1);
  }
  if (next <= last) whole.push({ kind: "deleted", from: next, to: last });
  return whole;
}

/** How many seqs one read takes, so that it is not too many bytes. */
export function windowOf(state) {
  const average = state.count ? state.bytes / state.count : 1;
  return Math.min(Math.max(Math.floor(WINDOW_BYTES / Math.max(average, 1)), 1), SEQS_MAX);
}

/** The first seq that was written at this time or later; `head_seq + 1` if there is none. */
export async function seqAt(topic, state, ts, signal) {
  let low = state.earliest_seq;
  let high = state.head_seq + 1;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const text = await api.call("POST", api.path`/v0/topics/${topic}/diff`, { from_seq: middle - 1, limit: 1, include_meta: false }, { asText: true, signal });
    const [record] = recordsOf(text);
    // Times do not go back from one seq to the next.
    if (record === undefined || record.ts >= ts) high = middle;
    else low = record.seq + 1;
  }
  return low;
}
