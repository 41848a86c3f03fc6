// The keys of the console.

import { h } from "../core/dom.js";
import { KEYS } from "../core/keyboard.js";
import { openDialog } from "./dialog.js";

export function openHelp() {
  const rows = KEYS.map(([keys, meaning]) => h("div.key-row", [h("dt", keys.split(" ").filter(Boolean).map((key) => h("kbd", key))), h("dd", meaning)]));
  openDialog({ title: "Keyboard", body: h("dl.key-list", rows) });
}
