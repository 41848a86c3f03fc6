// Dialogs. The browser keeps the focus inside, and Escape closes them.

import { h } from "../core/dom.js";
import { icon } from "./icon.js";

let count = 0;

/**
 * Shows a dialog. `actions` are { label, kind, run }: `run` may be async, and keeps the dialog open by returning false
 * or by throwing, which shows the message. `kind` is "primary", "danger" or absent. Returns the dialog, with `closed`, a promise.
 */
export function openDialog({ title, body, actions = [], isWide = false }) {
  count += 1;
  const problem = h("p.dialog-problem", { role: "alert", hidden: true });
  const buttons = actions.map((action) => h("button.button", { type: "button", class: action.kind ?? "", onclick: () => act(action) }, action.label));
  const dialog = h("dialog.dialog", { class: isWide ? "wide" : "", "aria-labelledby": `dialog-${count}` }, [
    h("header", [h("h2", { id: `dialog-${count}` }, title), h("button.icon-button", { type: "button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))]),
    h("div.dialog-body", [body, problem]),
    buttons.length ? h("footer", buttons) : null,
  ]);

  async function act(action) {
    problem.hidden = true;
    for (const button of buttons) button.disabled = true;
    try {
      if ((await action.run?.()) !== false) dialog.close();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    for (const button of buttons) button.disabled = false;
    dialog.dispatchEvent(new Event("settled"));
  }

  dialog.closed = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve();
    });
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * Asks for the typed name before something is lost. `run` does it, and its failure is shown in the dialog.
 */
export function confirmTyped({ title, text, name, action, run }) {
  const field = h("input.field", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": `Type ${name} to confirm` });
  const body = h("div.stack", [h("p", text), h("p", ["Type ", h("code.name", name), " to confirm."]), field]);
  const dialog = openDialog({ title, body, actions: [{ label: "Cancel" }, { label: action, kind: "danger", run }] });
  const button = dialog.querySelector("button.danger");
  const check = () => {
    button.disabled = field.value !== name;
  };
  field.addEventListener("input", check);
  field.addEventListener("keydown", (event) => event.key === "Enter" && !button.disabled && button.click());
  dialog.addEventListener("settled", check);
  check();
  field.focus();
  return dialog;
}
