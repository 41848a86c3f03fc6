// The ends of routers.

import { h } from "../core/dom.js";
import { link } from "../core/router.js";

export const STREAM = "stream:";

/** Where the console shows an end: a topic, a queue, or a topic of a stream (`stream:orders/events`). */
export function addressOf(name, type) {
  if (!name.startsWith(STREAM)) return type === "queue" ? link("/queues/:queue", { queue: name }) : link("/topics/:topic", { topic: name });
  const [stream, topic] = name.slice(STREAM.length).split("/");
  return link("/streams/:stream/:topic", { stream, topic });
}

export function endLink(name, type) {
  return h("a", { href: addressOf(name, type) }, name);
}
