// Asks for an API key. It stays in the memory of this page, and is gone when the tab is closed or loaded again.

import { hasKey } from "../core/api.js";
import { h } from "../core/dom.js";
import { signIn, signOut } from "../core/session.js";
import { labelled } from "./button.js";
import { openDialog } from "./dialog.js";

let open = null;

/** Shows the dialog, or returns the one that is open. The promise ends when it is closed. */
export function askForKey(reason) {
  open ??= ask(reason).finally(() => {
    open = null;
  });
  return open;
}

function ask(reason) {
  const field = h("input.field", { type: "password", autocomplete: "off", spellcheck: "false" });
  const body = h("div.stack", [
    h("p", reason),
    labelled("API key", field),
    h("p.hint", "The key stays in the memory of this page. It is not stored, and not part of an address."),
  ]);
  const actions = [{ label: "Use this key", kind: "primary", run: () => signIn(field.value.trim()) }];
  if (hasKey()) actions.unshift({ label: "Forget the key", run: signOut });
  const dialog = openDialog({ title: "Access", body, actions });
  field.addEventListener("keydown", (event) => event.key === "Enter" && dialog.querySelector("button.primary").click());
  field.focus();
  return dialog.closed;
}
