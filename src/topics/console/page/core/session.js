// The caller: what its key may do, and which server it is. Controls that need more rights are absent, or say why.

import * as api from "./api.js";
import { Signal } from "./signal.js";

const NOTHING_KNOWN = { isKnown: false, needsKey: false, scopes: [], prefixes: [], version: "", features: [] };

// What is known about the caller and the server.
export const session = new Signal(NOTHING_KNOWN);

/** Asks the server again. Throws `ApiError`. */
export async function refresh() {
  const rights = await api.get("/v0/access");
  const health = await api.get("/v0/health");
  session.set({
    isKnown: true,
    needsKey: rights.needs_key,
    scopes: rights.scopes,
    prefixes: rights.prefixes,
    version: health.version,
    features: health.features,
  });
  api.keyNeeded.set(null);
}

/** Goes on with another key. Throws `ApiError`, and then the old key counts again. */
export async function signIn(key) {
  const before = api.useKey(key);
  try {
    await refresh();
  } catch (error) {
    api.useKey(before);
    throw error;
  }
}

export function signOut() {
  api.useKey(null);
  session.set(NOTHING_KNOWN);
}

/** Whether the key has all of these scopes. */
export function can(...scopes) {
  return scopes.every((scope) => session.value.scopes.includes(scope));
}

/** Why a control is absent: a sentence for the title of a disabled button; null if it may be used. */
export function whyNot(...scopes) {
  const missing = scopes.filter((scope) => !can(scope));
  return missing.length ? `This key lacks the scope ${missing.join(" and ")}.` : null;
}
