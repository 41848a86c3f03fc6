// Lists that come in pages.

import * as api from "./api.js";

/** All entries of a list, up to `max`. `member` is the name of the list in an answer. Returns { entries, hasMore }. */
export async function readAll(where, member, { query = {}, signal, max = 5000 } = {}) {
  const entries = [];
  let cursor = "";
  do {
    const page = await api.get(where, { query: { page_size: 1000, ...query, cursor }, signal });
    entries.push(...page[member]);
    cursor = page.next_cursor ?? null;
  } while (cursor !== null && entries.length < max);
  return { entries: entries.slice(0, max), hasMore: cursor !== null };
}
