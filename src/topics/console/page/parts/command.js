// A command line to copy.

import { h } from "../core/dom.js";
import { iconButton } from "./button.js";
import { toast } from "./toast.js";

export function command(text) {
  const copy = iconButton("copy", "Copy the command", async () => {
    await navigator.clipboard.writeText(text);
    toast("The command is copied.");
  });
  return h("div.command", [h("code", text), copy]);
}
