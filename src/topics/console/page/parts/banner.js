// A line over the page while the server is away.

import { connection } from "../core/api.js";
import { clear, h } from "../core/dom.js";
import { icon } from "./icon.js";

const TEXTS = {
  offline: "The server does not answer. The page tries again every second, and goes on by itself.",
  starting: "The server is starting or stopping. The page goes on by itself.",
};

export function banner() {
  const element = h("div.banner", { role: "status", hidden: true });
  connection.follow((state) => {
    element.hidden = state === "online";
    document.body.classList.toggle("is-away", state !== "online");
    if (state !== "online") clear(element, icon("alert"), TEXTS[state]);
    else clear(element);
  });
  return element;
}
