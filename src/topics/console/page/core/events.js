// Server-sent events over `fetch`: with the key in a header, which a browser's EventSource cannot send.
//
// A stream that ends is opened again. The session on the server remembers what was sent; after a restart of the server
// there is no session any more, and a new one begins at the cursor of the last event. So no record is missed.

import * as api from "./api.js";

const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 5000;
// The server sends a comment after 15 seconds of silence. A longer silence means that the connection is dead.
const SILENCE_MS_MAX = 40_000;

/**
 * Follows topics until `signal` is aborted.
 *
 * `topics` says where each topic begins: { orders: { tail: true } } or { orders: { from_seq: 7 } }. `on` has a function
 * for each name of an event (`record`, `caught-up`, `tombstone`, `topic-deleted`, `error`), called with its data and the
 * text of it (`recordsOf` of core/records.js takes the text), and `state`, called with "connecting", "live" or "waiting".
 * `options` are further members of a watch.
 */
export async function follow(topics, on, { signal, options = {} }) {
  const cursors = structuredClone(topics);
  let retryMs = RETRY_MS_MIN;
  const heard = () => {
    retryMs = RETRY_MS_MIN;
  };
  while (!signal.aborted) {
    try {
      on.state?.("connecting");
      const session = await api.post("/v0/watch", { include_tags: true, ...options, topics: cursors }, { signal });
      for (const [name, start] of Object.entries(session.topics)) cursors[name] = { from_seq: start.from_seq };
      await readSession(session, cursors, on, signal, heard);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof api.ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
    }
    on.state?.("waiting");
    await pause(retryMs, signal);
    retryMs = Math.min(retryMs * 2, RETRY_MS_MAX);
  }
}

/** Opens the stream of a session until the server has no such session any more. */
async function readSession(session, cursors, on, signal, heard) {
  let lastId = null;
  while (!signal.aborted) {
    const headers = { accept: "text/event-stream", ...api.authorization() };
    if (lastId !== null) headers["last-event-id"] = lastId;
    const silence = new Silence();
    const ending = AbortSignal.any([signal, silence.signal]);
    const response = await fetch(session.stream_url, { headers, signal: ending, cache: "no-store" }).catch(networkFailure);
    if (!response.ok) {
      const error = api.failure(response.status, await response.text());
      if (response.status === 404) return;
      throw error;
    }
    api.connection.set("online");
    on.state?.("live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    for (;;) {
      silence.begin();
      const { done, value } = await reader.read().catch(networkFailure);
      silence.end();
      if (done) break;
      heard();
      for (const event of parser.feed(value)) {
        if (event.id !== null) lastId = event.id;
        const data = JSON.parse(event.data);
        const seq = data.to_seq ?? data.gap_to;
        if (data.topic !== undefined && seq !== undefined) cursors[data.topic] = { from_seq: seq };
        on[event.name]?.(data, event.data);
      }
    }
    on.state?.("connecting");
    await pause(RETRY_MS_MIN, signal);
  }
}

function networkFailure(error) {
  if (error.name !== "AbortError") api.connection.set("offline");
  throw error;
}

/** Ends a connection that says nothing for too long. */
class Silence {
  #ending = new AbortController();
  #timer = null;

  get signal() {
    return this.#ending.signal;
  }

  begin() {
    this.#timer = setTimeout(() => this.#ending.abort(), SILENCE_MS_MAX);
  }

  end() {
    clearTimeout(this.#timer);
  }
}

/** Text in, events out. Any split of the text gives the same events. */
export class EventParser {
  #text = "";

  feed(text) {
    this.#text += text;
    const blocks = this.#text.split("\n\n");
    this.#text = blocks.pop();
    return blocks.map(parseBlock).filter((event) => event !== null);
  }
}

function parseBlock(block) {
  const event = { name: "message", id: null, data: "" };
  let hasData = false;
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") {
      event.data += (hasData ? "\n" : "") + value;
      hasData = true;
    }
  }
  return hasData ? event : null;
}

export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
