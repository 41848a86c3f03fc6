// A new topic: its name, and the settings that matter at the start.

import * as api from "../core/api.js";
import { h } from "../core/dom.js";
import { go, link } from "../core/router.js";
import { durabilityMeaning } from "../parts/badge.js";
import { labelled } from "../parts/button.js";
import { openDialog } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";

export function openCreateTopic() {
  const name = h("input.field", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "orders" });
  const type = h("select.field", [h("option", { value: "log" }, "log: every reader sees every record"), h("option", { value: "queue" }, "queue: each record is a job for one worker")]);
  const meaning = h("span.hint", durabilityMeaning("disk"));
  const durability = h("select.field", { onchange: () => (meaning.textContent = durabilityMeaning(durability.value)) }, [
    ...["disk", "fsync", "memory", "ephemeral"].map((each) => h("option", { value: each }, each)),
  ]);
  const body = h("div.stack", [
    labelled("Name", name, "Letters, digits and . _ : - ; the first is a letter or a digit."),
    labelled("Type", type, "Fixed when the topic is created."),
    h("div.stack", [labelled("Durability", durability), meaning]),
  ]);
  async function create() {
    const made = await api.put(api.path`/v0/topics/${name.value.trim()}`, { type: type.value, durability: durability.value });
    toast(made.created ? `The topic ${made.topic} was created.` : `The topic ${made.topic} was there already, and has these settings now.`);
    go(link("/topics/:topic", { topic: made.topic }));
  }
  async function createIfNew() {
    // A PUT to an existing topic would replace all of its settings.
    const taken = await api.get(api.path`/v0/topics/${name.value.trim()}`, { query: { touch: false } }).catch((error) => {
      if (error.code === "topic_not_found") return null;
      throw error;
    });
    if (taken !== null) throw new api.ApiError(409, "exists", `The topic ${taken.topic} is there already. Open it to change its settings.`);
    await create();
  }
  openDialog({ title: "New topic", body, actions: [{ label: "Cancel" }, { label: "Create", kind: "primary", run: createIfNew }] });
  name.focus();
}
