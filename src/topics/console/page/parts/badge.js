// Small words with a colour: durability classes, kinds of topics, states.

import { h } from "../core/dom.js";

const DURABILITY = {
  ephemeral: ["warn", "In memory only: lost when the process ends"],
  memory: ["plain", "Written to the system: survives kill -9, not a power cut"],
  disk: ["plain", "Written to the system, seq reserved on disk: survives kill -9; a power cut may take the last 100 ms"],
  fsync: ["good", "Synced before the answer: survives kill -9 and a power cut"],
};

/** `tone` is "plain", "good", "warn", "bad" or "accent". */
export function badge(text, tone = "plain", title = null) {
  return h("span.badge", { class: tone, title }, text);
}

export function durabilityBadge(durability) {
  const [tone, meaning] = DURABILITY[durability] ?? ["plain", ""];
  return badge(durability, tone, meaning);
}

export function durabilityMeaning(durability) {
  return DURABILITY[durability]?.[1] ?? "";
}
