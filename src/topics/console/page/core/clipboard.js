// Copies text, and commands for a terminal.

import { toast } from "../parts/toast.js";
import { session } from "./session.js";

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard of the browser works over HTTPS and on this machine only.
    const field = document.createElement("textarea");
    field.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toast(`${what} copied.`);
}

/** The command line of a call. It names the key by a variable: the key itself is never copied. */
export function curl(method, where, body) {
  const parts = ["curl -s"];
  if (method !== "GET" && !(method === "POST" && body !== undefined)) parts.push(`-X ${method}`);
  parts.push(quoted(location.origin + where));
  if (session.value.needsKey) parts.push('-H "Authorization: Bearer $TOPICS_KEY"');
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  return parts.join(" ");
}

function quoted(text) {
  return /^[\w.,:/?=&%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
