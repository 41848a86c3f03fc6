// Settings of a topic: what each means, a comparison before they are saved, and what removes data.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { go, link } from "../core/router.js";
import { can, whyNot } from "../core/session.js";
import { durabilityMeaning } from "../parts/badge.js";
import { labelled, scopedButton } from "../parts/button.js";
import { confirmTyped, openDialog } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";

// Name, label, kind, meaning, and `queue` for settings that only queues have.
const SETTINGS = [
  ["durability", "Durability", ["ephemeral", "memory", "disk", "fsync"], "What an acknowledged write survives."],
  ["ttl_ms", "Age limit", "ms", "Records that are older expire. 0: never."],
  ["cap_records", "Cap by records", "count", "How many records are kept. 0: no limit."],
  ["cap_bytes", "Cap by bytes", "bytes", "How many bytes are kept. 0: no limit."],
  ["discard", "At a cap", ["old", "reject"], "old: the oldest records go, and readers get a tombstone. reject: the write is refused."],
  ["priority", "Priority", "optional", "From -1000 to 1000. Urgent topics are served first under load. Empty: by recency."],
  ["auto_priority", "Priority by recency", "switch", "Whether recent use counts while no priority is set."],
  ["idempotency_window_ms", "Idempotency window", "ms", "How long an idempotency key is remembered."],
  ["dedupe_node", "Node filter", "switch", "Whether readers can leave out records of their own node."],
  ["auto_create", "Create on write", "switch", "Whether a write with these settings creates a missing topic."],
  ["lease_ms", "Lease", "ms", "How long a claimed job belongs to its worker.", "queue"],
  ["max_deliveries", "Deliveries", "count", "After so many deliveries a job goes to the dead-letter topic. 0: no limit.", "queue"],
  ["dead_letter", "Dead-letter topic", "text", "Where jobs go that were delivered too often. Empty: none.", "queue"],
  ["claim_jitter_ms", "Claims together", "ms", "Claims within this time share the ready jobs evenly.", "queue"],
  ["leases_durable", "Durable leases", "switch", "Whether leases survive a restart of the server.", "queue"],
];

export function openSettings(_view, panel, shared, signal) {
  const { topic, state } = shared;
  const fields = new Map();
  const shown = SETTINGS.filter(([, , , , only]) => only !== "queue" || state.type === "queue");
  const rows = shown.map(([name, label, kind, meaning]) => {
    const input = makeField(kind, state.config[name]);
    input.disabled = !can("admin");
    fields.set(name, { kind, input });
    const note = h("span.hint");
    const draw = () => {
      note.textContent = echo(name, kind, input.value);
    };
    input.addEventListener("input", draw);
    draw();
    return h("div.setting", [labelled(label, input, meaning), note]);
  });
  const review = scopedButton(["admin"], "Review changes", () => openReview(), { kind: "primary" });
  const hidden = state.names_hidden ? "This key may not see the dead-letter topic of this queue, so it cannot save settings without removing it." : null;
  if (hidden) review.disabled = true;
  panel.append(
    h("section.card", [
      h("div.card-head", [h("h2", "Settings"), h("span.muted.small", `Type ${state.type}, fixed when the topic was created`)]),
      whyNot("admin") ? h("p.muted", `Read only: ${whyNot("admin")}`) : null,
      hidden ? h("p.muted", hidden) : null,
      h("div.settings", rows),
      h("div.row", review),
    ]),
    dangers(shared),
  );

  function wanted() {
    const config = { type: state.type };
    for (const [name, { kind, input }] of fields) config[name] = valueOf(kind, input);
    return config;
  }

  async function openReview() {
    const config = wanted();
    const changed = shown.filter(([name]) => config[name] !== state.config[name]);
    if (changed.length === 0) {
      toast("Nothing was changed.");
      return;
    }
    const table = h("table.diff", [
      h("thead", h("tr", [h("th", "Setting"), h("th", "Now"), h("th", "New")])),
      h("tbody", changed.map(([name, label, kind]) => h("tr", [h("th", { scope: "row" }, label), h("td.old", told(kind, state.config[name])), h("td.new", told(kind, config[name]))]))),
    ]);
    const warnings = cautions(state, config).map((text) => h("p.caution", text));
    openDialog({
      title: `Save ${format.plural(changed.length, "change")}?`,
      body: h("div.stack", [table, ...warnings]),
      actions: [{ label: "Cancel" }, { label: "Save", kind: "primary", run: () => save(config) }],
    });
  }

  async function save(config) {
    const now = await api.get(api.path`/v0/topics/${topic}`, { query: { touch: false }, signal });
    if (JSON.stringify(now.config) !== JSON.stringify(state.config)) throw new Error("The settings were changed by someone else meanwhile. Open this page again.");
    // A PUT replaces all settings, so all of them are sent.
    const saved = await api.put(api.path`/v0/topics/${topic}`, { ...rest(state.config), ...config });
    toast(saved.warnings?.length ? `Saved, with a warning: ${saved.warnings.join(" ")}` : "The settings were saved.");
    shared.state = { ...now, config: saved.config };
    openSettings(_view, clear(panel), shared, signal);
  }
}

/** Settings that are not shown, which a save must keep. */
function rest(config) {
  const { durable: _, ...kept } = config;
  return kept;
}

function makeField(kind, value) {
  if (Array.isArray(kind)) return h("select.field", kind.map((each) => h("option", { value: each, selected: each === value }, each)));
  if (kind === "switch") return h("select.field", [true, false].map((each) => h("option", { value: String(each), selected: each === value }, each ? "yes" : "no")));
  const type = kind === "text" ? "text" : "number";
  return h("input.field", { type, value: value ?? "", min: kind === "optional" ? "-1000" : type === "number" ? "0" : undefined, step: "1", spellcheck: "false" });
}

function valueOf(kind, input) {
  if (Array.isArray(kind)) return input.value;
  if (kind === "switch") return input.value === "true";
  if (kind === "text") return input.value.trim() || null;
  if (kind === "optional" && input.value === "") return null;
  return Number(input.value);
}

/** What a number means, below its field. */
function echo(name, kind, value) {
  if (name === "durability") return durabilityMeaning(value);
  if (kind === "ms" && Number(value) >= 1000) return `= ${format.span(Number(value))}`;
  if (kind === "bytes" && Number(value) >= 1024) return `= ${format.bytes(Number(value))}`;
  if (kind === "count" && Number(value) >= 10_000) return `= ${format.count(Number(value))}`;
  return "";
}

function told(kind, value) {
  if (value === null) return "none";
  if (kind === "switch") return value ? "yes" : "no";
  if (kind === "ms") return value >= 1000 ? `${format.count(value)} ms (${format.span(value)})` : `${value} ms`;
  if (kind === "bytes") return `${format.count(value)} (${format.bytes(value)})`;
  return typeof value === "number" ? format.count(value) : String(value);
}

/** What a change would remove at once. */
function cautions(state, config) {
  const found = [];
  const before = state.config;
  if (config.discard === "old" && config.cap_records && config.cap_records < state.count) found.push(`The new cap removes ${format.count(state.count - config.cap_records)} records with the next write.`);
  if (config.discard === "old" && config.cap_bytes && config.cap_bytes < state.bytes) found.push(`The new cap removes ${format.bytes(state.bytes - config.cap_bytes)} of records with the next write.`);
  if (config.ttl_ms && (!before.ttl_ms || config.ttl_ms < before.ttl_ms)) found.push(`Records that are older than ${format.span(config.ttl_ms)} expire.`);
  const order = ["ephemeral", "memory", "disk", "fsync"];
  if (order.indexOf(config.durability) < order.indexOf(before.durability)) found.push(`Writes from here on are less safe. ${config.durability}: ${durabilityMeaning(config.durability).toLowerCase()}.`);
  return found;
}

function dangers({ topic, state }) {
  const beforeSeq = h("input.field", { type: "number", min: "1", step: "1", placeholder: String(state.head_seq + 1) });
  const match = h("input.field", { type: "text", placeholder: "acme:* or acme:7", spellcheck: "false", autocomplete: "off" });
  function deleteRecords() {
    const body = {};
    if (beforeSeq.value) body.before_seq = Number(beforeSeq.value);
    if (match.value.trim()) body.match = match.value.trim();
    if (Object.keys(body).length === 0) {
      toast("Say which records: below a seq, with a tag, or both.");
      return;
    }
    const which = [body.before_seq ? `below seq ${format.count(body.before_seq)}` : null, body.match ? `with the tag ${format.visible(body.match)}` : null].filter(Boolean).join(" and ");
    confirmTyped({
      title: "Delete records",
      text: `All records of this topic ${which} are deleted for good.`,
      name: topic,
      action: "Delete the records",
      run: async () => {
        const answer = await api.post(api.path`/v0/topics/${topic}/delete`, body);
        toast(`${format.plural(answer.deleted, "record")} deleted.`);
      },
    });
  }
  function removeTopic() {
    confirmTyped({
      title: "Remove the topic",
      text: `The topic, ${format.plural(state.count, "record")}, its consumer groups and its routers are removed for good.`,
      name: topic,
      action: "Remove the topic",
      run: async () => {
        const answer = await api.remove(api.path`/v0/topics/${topic}`);
        const routers = answer.routers_removed.length ? ` ${format.plural(answer.routers_removed.length, "router")} went with it.` : "";
        toast(`The topic ${topic} was removed.${routers}`);
        go(link("/topics"));
      },
    });
  }
  return h("section.card.dangers", [
    h("h2", "Delete"),
    whyNot("delete") ? h("p.muted", whyNot("delete")) : null,
    h("div.columns.even", [
      labelled("Below seq", beforeSeq, "Records with a lower seq."),
      labelled("With the tag", match, "A whole tag, or a prefix that ends in *."),
    ]),
    h("div.row", [
      scopedButton(["delete"], "Delete records…", deleteRecords, { kind: "danger" }),
      h("span.grow"),
      scopedButton(["delete"], "Remove the topic…", removeTopic, { kind: "danger", iconName: "trash" }),
    ]),
  ]);
}
