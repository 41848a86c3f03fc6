// Calls of `/v0`. The key is in memory only: it is sent in a header, never in an address, and is never stored.

import { Signal } from "./signal.js";

/** A call that failed. `status` is 0 if the server did not answer. */
export class ApiError extends Error {
  constructor(status, code, message, detail) {
    super(message);
    this.status = status;
    this.code = code;
    this.detail = detail ?? null;
  }

  get isOffline() {
    return this.status === 0;
  }
}

// "online", "offline" (no answer), or "starting" (the log is being recovered, or the server is about to stop).
export const connection = new Signal("online");
// The reason of the last refusal for want of a key; null if there is none.
export const keyNeeded = new Signal(null);

let key = null;

/** Sends another key from here on. Returns the key that was sent before. */
export function useKey(text) {
  const before = key;
  key = text || null;
  return before;
}

export function hasKey() {
  return key !== null;
}

export function authorization() {
  return key === null ? {} : { authorization: `Bearer ${key}` };
}

/** The path of a call, with names encoded: path`/v0/topics/${name}/diff`. */
export function path(parts, ...names) {
  return parts.reduce((made, part, place) => made + encodeURIComponent(names[place - 1]) + part);
}

export function query(values) {
  const given = Object.entries(values ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const get = (where, options) => call("GET", where, undefined, options);
export const post = (where, body = {}, options) => call("POST", where, body, options);
export const put = (where, body = {}, options) => call("PUT", where, body, options);
export const remove = (where, options) => call("DELETE", where, undefined, options);

/**
 * Options: `query` (an object), `signal`, `headers`, `asText` (the answer is the text of the JSON), `body` (JSON text that
 * is sent as it is).
 */
export async function call(method, where, body, options = {}) {
  const headers = { accept: "application/json", ...authorization(), ...options.headers };
  const text = options.body ?? (body === undefined ? undefined : JSON.stringify(body));
  if (text !== undefined) headers["content-type"] = "application/json";
  let response;
  let answered;
  try {
    response = await fetch(where + query(options.query), { method, headers, body: text, signal: options.signal, cache: "no-store" });
    answered = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    connection.set("offline");
    throw new ApiError(0, "offline", "The server does not answer.");
  }
  if (response.ok) {
    connection.set("online");
    return options.asText ? answered : JSON.parse(answered);
  }
  throw failure(response.status, answered);
}

/** The error in an answer. It also notes what the answer says about the connection and the key. */
export function failure(status, text) {
  let told = null;
  try {
    told = JSON.parse(text).error;
  } catch {
    // A proxy may answer with a page of its own.
  }
  const error = new ApiError(status, told?.code ?? "unknown", told?.message ?? `The answer has the status ${status}.`, told?.detail);
  const isStarting = error.code === "not_ready" || error.code === "shutting_down";
  connection.set(isStarting ? "starting" : status === 502 || status === 504 ? "offline" : "online");
  if (status === 401) keyNeeded.set(key === null ? "This server needs a key." : "The server does not know this key.");
  return error;
}
