// The settings of the server: each value, where it comes from, its default, and what it does.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { can, whyNot } from "../core/session.js";
import { badge } from "../parts/badge.js";
import { segmented } from "../parts/button.js";
import { empty } from "../parts/empty.js";
import { searchField } from "../parts/search.js";

export function open(view) {
  let settings = [];
  let which = view.query.get("show") === "set" ? "set" : "all";
  const place = h("div.stack-wide");
  const search = searchField(view, { label: "Settings whose name or meaning contains", placeholder: "Find a setting…", onchange: show });
  const choice = segmented("Which settings", [["all", "All"], ["set", "Set by you"]], which, (value) => {
    which = value;
    view.setQuery({ show: value === "set" ? "set" : "" });
    show();
  });
  view.head("Settings", { about: "A flag wins over the environment, that over topics.toml, that over the default. Keys are counted, not shown.", controls: can("admin") ? [search.element, choice] : [] });
  view.root.append(place);
  if (!can("admin")) {
    clear(place, empty("This key may not see the settings", whyNot("admin")));
    return;
  }
  view.load(place, async () => {
    ({ settings } = await api.get("/v0/admin/config", { signal: view.signal }));
    show();
  });

  function show() {
    const text = search.field.value.trim().toLowerCase();
    const found = settings.filter((each) => (which === "all" || each.origin !== "default") && (each.name.includes(text) || each.meaning.toLowerCase().includes(text)));
    const groups = [...new Set(found.map((each) => each.group))];
    const cards = groups.map((group) => h("section.card", [h("h2", group), h("div.server-settings", found.filter((each) => each.group === group).map(settingRow))]));
    clear(place, cards.length ? cards : empty("No setting matches", which === "set" && !text ? "Every setting has its default." : "Change the search to see more."));
  }
}

function settingRow(setting) {
  const isSet = setting.origin !== "default";
  return h("div.server-setting", [
    h("div.server-setting-name", [h("code", setting.name), setting.reloaded ? badge("at SIGHUP", "plain", "A running server takes a new value at SIGHUP") : null]),
    h("div.server-setting-value", [h("code.isolate", { class: isSet ? "strong" : "" }, format.visible(setting.value)), isSet && setting.default !== setting.value && setting.default !== "(not set)" ? h("span.muted.small", `default ${setting.default}`) : null]),
    h("div.server-setting-origin", badge(format.visible(setting.origin), isSet ? "accent" : "plain")),
    h("p.muted.small", meaning(setting.meaning)),
  ]);
}

/** Words in backquotes are code. */
function meaning(text) {
  return text.split("`").map((part, place) => (place % 2 ? h("code", part) : part));
}
