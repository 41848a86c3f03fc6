// Writes records by hand. The history is in memory only, and ends with the tab of the browser.

import * as api from "../core/api.js";
import { copy, curl } from "../core/clipboard.js";
import { clear, h } from "../core/dom.js";
import { clock, count, visible } from "../core/format.js";
import { link } from "../core/router.js";
import { button, labelled, segmented } from "../parts/button.js";
import { empty } from "../parts/empty.js";
import { toast } from "../parts/toast.js";

const HISTORY_MAX = 20;
const PREVIEW_CHARS = 120;

// What was written, by topic, the newest first.
const histories = new Map();

export function openWrite(_view, panel, { topic }) {
  let form = "json";
  const data = h("textarea.field", { rows: "8", spellcheck: "false", placeholder: '{"id": 1}', "data-search": true });
  const tag = h("input.field", { type: "text", spellcheck: "false", autocomplete: "off" });
  const node = h("input.field", { type: "text", spellcheck: "false", autocomplete: "off" });
  const key = h("input.field", { type: "text", spellcheck: "false", autocomplete: "off" });
  const complaint = h("p.dialog-problem", { role: "alert", hidden: true });
  const list = h("div.history");
  const send = button("Write the record", () => write(), { kind: "primary" });

  /** The text of the request. The payload goes into it as it was typed, so that no number changes. */
  function body() {
    const text = form === "json" ? data.value.trim() : JSON.stringify(data.value);
    JSON.parse(text);
    const members = [`"data":${text}`];
    if (tag.value) members.push(`"tag":${JSON.stringify(tag.value)}`);
    if (node.value) members.push(`"node":${JSON.stringify(node.value)}`);
    return `{"records":[{${members.join(",")}}]}`;
  }

  async function write() {
    complaint.hidden = true;
    send.disabled = true;
    try {
      const text = body();
      const headers = key.value ? { "idempotency-key": key.value } : {};
      const answer = await api.call("POST", api.path`/v0/topics/${topic}`, undefined, { body: text, headers });
      toast(answer.deduped ? `Not written again: this key wrote seq ${count(answer.last_seq)} before.` : `Written with seq ${count(answer.last_seq)}.`);
      note({ at: Date.now(), seq: answer.last_seq, form, data: data.value, tag: tag.value, node: node.value });
    } catch (error) {
      complaint.textContent = error instanceof SyntaxError ? `This is not JSON: ${error.message}. Choose Text to write it as a text.` : error.message;
      complaint.hidden = false;
    }
    send.disabled = false;
  }

  function note(entry) {
    histories.set(topic, [entry, ...(histories.get(topic) ?? [])].slice(0, HISTORY_MAX));
    drawHistory();
  }

  function drawHistory() {
    const entries = histories.get(topic) ?? [];
    clear(
      list,
      entries.length ? entries.map((entry) => historyRow(entry)) : empty("Nothing written here yet", "Records that you write appear here, to be used again. They are kept in memory only."),
    );
  }

  function historyRow(entry) {
    return h("div.history-row", [
      h("a", { href: link("/topics/:topic", { topic }, { seq: entry.seq }) }, `Seq ${count(entry.seq)}`),
      h("span.muted", clock(entry.at).slice(0, 8)),
      h("code.history-data.isolate", visible(entry.data.slice(0, PREVIEW_CHARS))),
      button("Use again", () => use(entry)),
    ]);
  }

  function use(entry) {
    form = entry.form;
    data.value = entry.data;
    tag.value = entry.tag;
    node.value = entry.node;
    for (const each of choice.children) each.setAttribute("aria-pressed", String(each.textContent.toLowerCase() === form));
    data.focus();
  }

  const choice = segmented("Form of the data", [["json", "JSON"], ["text", "Text"]], form, (chosen) => {
    form = chosen;
  });
  const copyCurl = button("Copy as curl", () => {
    try {
      copy(curl("POST", api.path`/v0/topics/${topic}`, JSON.parse(body())), "Command");
    } catch (error) {
      complaint.textContent = `This is not JSON: ${error.message}.`;
      complaint.hidden = false;
    }
  });
  data.addEventListener("keydown", (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && write());
  panel.append(
    h("div.columns", [
      h("section.card", [
        h("div.card-head", [h("h2", "New record"), choice]),
        labelled("Data", data, "Ctrl+Enter writes it."),
        h("div.columns.even", [
          labelled("Tag", tag, "A label to find and delete by. Optional."),
          labelled("Node", node, "Who writes; readers can leave out their own records. Optional."),
        ]),
        labelled("Idempotency key", key, "A second write with the same key changes nothing. Optional."),
        complaint,
        h("div.row", [send, copyCurl]),
      ]),
      h("section.card", [h("h2", "Written from here"), list]),
    ]),
  );
  drawHistory();
}
