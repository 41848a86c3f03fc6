// The frame of the console: navigation, the state of the connection, theme, key and help.

import { connection } from "../core/api.js";
import { clear, h } from "../core/dom.js";
import { plural } from "../core/format.js";
import { link } from "../core/router.js";
import { session } from "../core/session.js";
import { nextTheme, theme } from "../core/theme.js";
import { iconButton } from "./button.js";
import { openHelp } from "./help.js";
import { icon } from "./icon.js";
import { askForKey } from "./key_dialog.js";
import { toast } from "./toast.js";

/** Returns `element`, `show(page)`, which marks the page in the navigation, and `closeMenu()`, which returns whether it was open. */
export function navigation(pages, main) {
  const links = new Map();
  const list = h("div.nav-list");
  let section;
  for (const page of pages.filter((each) => each.label)) {
    if (page.section && page.section !== section) list.append(h("p.nav-section", page.section));
    section = page.section;
    const made = h("a.nav-link", { href: link(page.path) }, [icon(page.icon), page.label]);
    links.set(page.path, made);
    list.append(made);
  }
  const menuButton = iconButton("menu", "Menu", () => element.classList.toggle("menu-open"));
  menuButton.classList.add("menu-button");
  const brand = h("a.brand", { href: link("/") }, [h("img", { src: "/console/icon.svg", alt: "", width: "24", height: "24" }), h("span", "topics")]);
  const nav = h("nav.nav", { "aria-label": "Pages" }, [list, h("div.nav-foot", [stateLine(), rightsLine()])]);
  const tools = h("div.tools", [iconButton("help", "Keyboard help", openHelp), themeButton(), keyButton()]);
  const element = h("div.frame", [h("header.topbar", [menuButton, brand, tools]), nav, main]);
  list.addEventListener("click", () => element.classList.remove("menu-open"));

  function show(page) {
    for (const [path, each] of links) {
      if (path === (page?.parent ?? page?.path)) each.setAttribute("aria-current", "page");
      else each.removeAttribute("aria-current");
    }
  }
  function closeMenu() {
    const isOpen = element.classList.contains("menu-open");
    element.classList.remove("menu-open");
    return isOpen;
  }
  return { element, show, closeMenu };
}

function stateLine() {
  const line = h("p.state-line", { role: "status" });
  const draw = () => {
    const state = connection.value;
    const text = { online: "Connected", offline: "No answer", starting: "Starting" }[state];
    clear(line, h("span.dot", { class: state }), text, session.value.version ? h("span.muted", ` · ${session.value.version}`) : null);
  };
  connection.follow(draw);
  session.follow(draw);
  return line;
}

function rightsLine() {
  const line = h("p.rights-line.muted");
  session.follow((state) => {
    if (!state.isKnown) line.textContent = "";
    else if (!state.needsKey) line.textContent = "Open access, no keys";
    else {
      const names = state.prefixes.length ? `, ${plural(state.prefixes.length, "prefix", "prefixes")}` : "";
      line.textContent = `${state.scopes.length === 4 ? "Full access" : state.scopes.join(", ")}${names}`;
      line.title = state.prefixes.length ? `Names that begin with ${state.prefixes.join(", ")}` : "";
    }
  });
  return line;
}

function themeButton() {
  const button = iconButton("theme", label(theme()), () => {
    const chosen = nextTheme();
    button.setAttribute("aria-label", label(chosen));
    button.title = label(chosen);
    toast({ system: "Colours follow the system.", light: "Light colours.", dark: "Dark colours." }[chosen]);
  });
  return button;
}

function label(chosen) {
  return `Colours: ${chosen}`;
}

function keyButton() {
  const button = iconButton("key", "API key", () => askForKey("Another key can be used from here on."));
  session.follow((state) => {
    button.hidden = !state.needsKey;
  });
  return button;
}
