// Redrive: dead letters of a queue go back into it. A server moves as many as it can in a second, and is called again.

import * as api from "./api.js";

const CALL_MS = 1000;

/** Seqs as ranges { from_seq, until_seq } of seqs that follow each other: [3, 4, 9] gives two. */
export function rangesOf(seqs) {
  const ranges = [];
  for (const seq of [...seqs].sort((one, other) => one - other)) {
    const last = ranges.at(-1);
    if (last !== undefined && last.until_seq === seq - 1) last.until_seq = seq;
    else ranges.push({ from_seq: seq - 1, until_seq: seq });
  }
  return ranges;
}

/**
 * Runs a redrive to its end. `parts` are bodies of calls, one after another: filters, or ranges of seqs. `onProgress` gets { moved, matched,
 * skipped } after each call. Throws `ApiError`. Returns the same, with `stopped`: "end", "limit", "full" or "stopped" (by `signal`), and
 * `jobs`, the first ones of a dry run.
 */
export async function redrive(queue, parts, { isDry = false, rate = 0, limit = 0, onProgress = () => {}, signal } = {}) {
  const total = { moved: 0, matched: 0, skipped: 0, jobs: [], stopped: "end" };
  for (const part of parts) {
    let cursor = {};
    for (;;) {
      if (signal?.aborted) return { ...total, stopped: "stopped" };
      const left = limit ? limit - (isDry ? total.matched : total.moved) : 0;
      if (limit && left <= 0) return { ...total, stopped: "limit" };
      const done = await api.post(api.path`/v0/topics/${queue}/redrive`, { ...part, ...cursor, dry_run: isDry, rate, limit: left, max_ms: CALL_MS });
      total.moved += done.moved;
      total.matched += done.matched;
      total.skipped += done.skipped;
      total.jobs.push(...done.jobs.slice(0, 10 - total.jobs.length));
      onProgress(total);
      if (done.stopped === "full") return { ...total, stopped: "full" };
      if (done.stopped !== "time") break;
      // Jobs that die again meanwhile have higher seqs, and are not meant.
      cursor = { from_seq: done.next_from_seq, until_seq: done.until_seq };
    }
  }
  return total;
}
