// Buttons, and controls that a key may not use.

import { h } from "../core/dom.js";
import { whyNot } from "../core/session.js";
import { icon } from "./icon.js";

export function button(label, onclick, { kind = "", iconName = null, title = null, disabled = false } = {}) {
  return h("button.button", { type: "button", class: kind, onclick, title, disabled }, [iconName ? icon(iconName) : null, label]);
}

export function iconButton(iconName, label, onclick) {
  return h("button.icon-button", { type: "button", "aria-label": label, title: label, onclick }, icon(iconName));
}

/** A button that needs scopes. Without them it is disabled, and its title says which one is missing. */
export function scopedButton(scopes, label, onclick, options = {}) {
  const reason = whyNot(...scopes);
  return button(label, onclick, { ...options, title: reason ?? options.title, disabled: reason !== null || options.disabled === true });
}

/** A choice of a few: one is pressed. `choices` are [value, label]. */
export function segmented(label, choices, chosen, onchange) {
  const buttons = choices.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text),
  );
  function choose(value) {
    for (const [place, each] of buttons.entries()) each.setAttribute("aria-pressed", String(choices[place][0] === value));
    onchange(value);
  }
  return h("div.segmented", { role: "group", "aria-label": label }, buttons);
}

let fieldCount = 0;

/** A labelled field. `input` is an input, select or textarea. */
export function labelled(text, input, hint = null) {
  fieldCount += 1;
  input.id = `field-${fieldCount}`;
  if (hint) input.setAttribute("aria-describedby", `hint-${fieldCount}`);
  return h("div.labelled", [h("label.label", { for: input.id }, text), input, hint ? h("span.hint", { id: `hint-${fieldCount}` }, hint) : null]);
}
