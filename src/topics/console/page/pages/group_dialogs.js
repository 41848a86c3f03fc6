// Dialogs of consumer groups: to move one, with what that means for its reader; to make one; to delete one.

import * as api from "../core/api.js";
import { h } from "../core/dom.js";
import * as format from "../core/format.js";
import { whyNot } from "../core/session.js";
import { labelled } from "../parts/button.js";
import { confirmTyped, openDialog } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";

/** `group` is a row with topic, group, seq, lag and head_seq; `onDone` is called after a change. */
export function openMoveGroup(group, onDone) {
  const seq = h("input.field", { type: "number", min: "0", max: String(group.head_seq), value: String(group.seq), oninput: () => tell() });
  const where = h("select.field", { onchange: () => tell() }, [
    h("option", { value: "seq" }, "to a seq"),
    h("option", { value: "start" }, "to the first record that can be read"),
    h("option", { value: "head" }, "to the head: leave out what is there"),
  ]);
  const seqRow = labelled("The last seq that is done", seq, `From 0 to ${format.count(group.head_seq)}`);
  const effect = h("p", { role: "status" });
  const body = h("div.stack", [
    h("dl.totals", [
      row("Topic", group.topic),
      row("Done up to", format.count(group.seq)),
      row("Head", format.count(group.head_seq)),
      row("Lag", format.count(group.lag)),
      row("Last commit", format.time(group.last_commit_ts).slice(0, 19)),
    ]),
    labelled("Move the group", where),
    seqRow,
    effect,
  ]);
  const dialog = openDialog({
    title: group.group,
    body,
    actions: [
      { label: "Delete…", kind: "danger", run: () => deleteGroup(group, onDone) },
      { label: "Cancel" },
      { label: "Move", kind: "primary", run: move },
    ],
  });
  const [remove, moving] = [dialog.querySelector("button.danger"), dialog.querySelector("button.primary")];
  dialog.addEventListener("settled", tell);
  tell();

  function target() {
    if (where.value === "head") return group.head_seq;
    if (where.value === "start") return 0;
    return seq.value === "" ? NaN : Number(seq.value);
  }

  function tell() {
    seqRow.hidden = where.value !== "seq";
    const to = target();
    const isValid = Number.isInteger(to) && to >= 0 && to <= group.head_seq;
    effect.textContent = isValid ? effectText(group, to, where.value) : `Give a whole number from 0 to ${format.count(group.head_seq)}.`;
    allow(moving, whyNot("admin"), isValid && (where.value === "start" || to !== group.seq));
    allow(remove, whyNot("delete"), true);
  }

  async function move() {
    const asked = where.value === "seq" ? { seq: target() } : { from: where.value };
    const moved = await api.put(api.path`/v0/topics/${group.topic}/groups/${group.group}`, asked);
    toast(`The group ${group.group} of ${group.topic} is at seq ${format.count(moved.seq)}; its lag is ${format.count(moved.lag)}.`);
    await onDone();
  }
}

function effectText(group, to, where) {
  if (where === "start") return "Its reader gets every record again that can still be read.";
  if (to === group.seq) return "The group is there already.";
  if (to > group.seq) return `Its reader never gets the next ${format.plural(to - group.seq, "seq")}.`;
  return `Its reader gets the last ${format.plural(group.seq - to, "seq")} again.`;
}

function allow(button, reason, isReady) {
  button.disabled = reason !== null || !isReady;
  button.title = reason ?? "";
}

function row(label, value) {
  return h("div", [h("dt", label), h("dd", value)]);
}

function deleteGroup(group, onDone) {
  confirmTyped({
    title: "Delete the group",
    text: `The cursor of the group on ${group.topic} is lost: a reader that uses it fails until the group is made again. Records stay.`,
    name: group.group,
    action: "Delete the group",
    run: async () => {
      await api.remove(api.path`/v0/topics/${group.topic}/groups/${group.group}`);
      toast(`The group ${group.group} of ${group.topic} is deleted.`);
      await onDone();
    },
  });
}

export function openCreateGroup(onDone) {
  const field = (placeholder) => h("input.field", { type: "text", autocomplete: "off", spellcheck: "false", placeholder });
  const [topic, name] = [field("orders"), field("billing")];
  const from = h("select.field", [h("option", { value: "start" }, "the first record that can be read"), h("option", { value: "head" }, "new records only")]);
  const body = h("div.stack", [labelled("Topic", topic), labelled("Name", name, "Letters, digits and . _ : -"), labelled("It begins with", from)]);
  async function create() {
    const where = api.path`/v0/topics/${topic.value.trim()}/groups/${name.value.trim()}`;
    const taken = await api.get(where).catch((error) => {
      if (error.code === "group_not_found") return null;
      throw error;
    });
    if (taken !== null) throw new api.ApiError(409, "exists", `The group ${taken.group} of ${taken.topic} is there already.`);
    await api.put(where, { from: from.value });
    toast(`The group ${name.value.trim()} of ${topic.value.trim()} is made.`);
    await onDone();
  }
  openDialog({ title: "New group", body, actions: [{ label: "Cancel" }, { label: "Create", kind: "primary", run: create }] });
  topic.focus();
}
