// The picture of routers: topics as boxes, copies as lines from left to right. A line that goes back closes a cycle.

import { h, svg } from "../core/dom.js";
import * as format from "../core/format.js";
import { layersOf } from "../core/layers.js";
import { topicRate } from "../core/topic_rates.js";
import { STREAM, addressOf } from "./end_link.js";

const NODE_WIDTH = 196;
const NODE_HEIGHT = 48;
const COLUMN_GAP = 104;
const ROW_GAP = 26;
const MARGIN = 20;
const NAME_CHARACTERS = 22;
// Room below the boxes for lines that go back.
const BACK_HEIGHT = 56;
const KINDS = { stream: "topic of a stream", queue: "queue", log: "topic" };

export class RouterGraph {
  #options;
  // Names and types of the graph that is drawn: a refresh with the same ones changes figures only.
  #drawn = "";
  #edges = new Map();
  #nodes = new Map();

  /** `onOpen(name)` is called for a click on a line; a lag above `lagHigh` is shown in colour. */
  constructor(options) {
    this.#options = options;
    this.drawing = svg("svg.graph-drawing", { role: "group" });
    this.element = h("div.graph", { tabindex: "0", role: "group", "aria-label": "Graph of the routers" }, this.drawing);
  }

  /** Routers as in the list of the server, with `rate`, `sourceType` and `destType`. */
  draw(routers) {
    const wanted = JSON.stringify(routers.map(({ router, source, dest, sourceType, destType }) => [router, source, dest, sourceType, destType]));
    if (wanted !== this.#drawn) this.#build(routers);
    this.#drawn = wanted;
    const busiest = Math.max(...routers.map((router) => router.rate ?? 0), 1);
    for (const router of routers) this.#edges.get(router.router).update(router, busiest);
    for (const each of this.#nodes.values()) each.update();
  }

  #build(routers) {
    const layers = layersOf(routers.map((router) => [router.source, router.dest]));
    const placeByName = places(layers);
    const height = Math.max(...[...placeByName.values()].map((place) => place.y)) + NODE_HEIGHT + MARGIN;
    const hasBack = routers.some((router) => placeByName.get(router.dest).x <= placeByName.get(router.source).x);
    const size = [layers.length * (NODE_WIDTH + COLUMN_GAP) - COLUMN_GAP + 2 * MARGIN, height + (hasBack ? BACK_HEIGHT : 0)];
    this.drawing.setAttribute("viewBox", `0 0 ${size.join(" ")}`);
    this.drawing.setAttribute("width", String(size[0]));
    this.drawing.setAttribute("height", String(size[1]));
    this.drawing.setAttribute("aria-label", `${format.plural(routers.length, "router")} between ${format.plural(placeByName.size, "topic")}`);
    const typeByName = new Map(routers.flatMap((router) => [[router.source, router.sourceType], [router.dest, router.destType]]));
    const ports = portsOf(routers, placeByName);
    this.#edges = new Map(routers.map((router) => [router.router, this.#edge(router.router, ports.get(router.router), height)]));
    this.#nodes = new Map([...placeByName].map(([name, place]) => [name, node(name, place, typeByName.get(name))]));
    this.drawing.replaceChildren(...[...this.#edges.values(), ...this.#nodes.values()].map((each) => each.element));
  }

  #edge(name, [from, to], height) {
    const isBack = to.x <= from.x;
    const reach = Math.max((to.x - from.x) / 2, 40);
    const low = height + 40;
    const path = isBack
      ? `M${from.x},${from.y}C${from.x + 70},${low} ${to.x - 70},${low} ${to.x},${to.y}`
      : `M${from.x},${from.y}C${from.x + reach},${from.y} ${to.x - reach},${to.y} ${to.x},${to.y}`;
    const line = svg("path.graph-line", { d: path });
    const title = svg("title");
    const figures = label((from.x + to.x) / 2, isBack ? height + 22 : (from.y + to.y) / 2);
    const open = () => this.#options.onOpen(name);
    const onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      open();
    };
    const tip = svg("path.graph-tip", { d: `M${to.x - 8},${to.y - 4.5}L${to.x},${to.y}L${to.x - 8},${to.y + 4.5}Z` });
    const element = svg("g", { role: "button", tabindex: "0", onclick: open, onkeydown }, [title, svg("path.graph-hit", { d: path }), line, tip, figures.element]);
    const update = (router, busiest) => {
      const rate = router.rate ?? 0;
      const state = router.lag === null ? "unknown" : router.lag > this.#options.lagHigh ? "late" : rate > 0 ? "busy" : "idle";
      const lag = router.lag === null ? "lag not known" : `lag ${format.count(router.lag)}`;
      const told = `${name}: from ${router.source} to ${router.dest}, ${format.rate(router.rate)} copies a second, ${lag}`;
      element.setAttribute("class", `graph-edge ${state}`);
      element.setAttribute("aria-label", told);
      title.textContent = told;
      line.setAttribute("stroke-width", (1.5 + 2.5 * Math.sqrt(rate / busiest)).toFixed(1));
      figures.show(router.lag ? `${format.rate(router.rate)}/s · ${lag}` : `${format.rate(router.rate)}/s`);
    };
    return { element, update };
  }
}

/** Lines that begin or end at the same box are spread over its side, in the order of their other ends. */
function portsOf(routers, placeByName) {
  const ports = new Map(routers.map((router) => [router.router, [null, null]]));
  for (const [side, own, other, x] of [[0, "source", "dest", NODE_WIDTH], [1, "dest", "source", 0]]) {
    const byNode = new Map();
    for (const router of routers) byNode.set(router[own], [...(byNode.get(router[own]) ?? []), router]);
    for (const [name, ownRouters] of byNode) {
      const place = placeByName.get(name);
      ownRouters.sort((one, two) => placeByName.get(one[other]).y - placeByName.get(two[other]).y);
      ownRouters.forEach((router, number) => {
        const share = (number + 1) / (ownRouters.length + 1);
        ports.get(router.router)[side] = { x: place.x + x, y: place.y + NODE_HEIGHT * share };
      });
    }
  }
  return ports;
}

function places(layers) {
  const tallest = Math.max(...layers.map((layer) => layer.length));
  const step = NODE_HEIGHT + ROW_GAP;
  const found = new Map();
  layers.forEach((layer, column) => {
    const top = MARGIN + ((tallest - layer.length) * step) / 2;
    layer.forEach((name, row) => found.set(name, { x: MARGIN + column * (NODE_WIDTH + COLUMN_GAP), y: top + row * step }));
  });
  return found;
}

function node(name, { x, y }, type) {
  const kind = name.startsWith(STREAM) ? "stream" : (type ?? "log");
  const note = svg("text.graph-note", { x: x + 12, y: y + 37 });
  const element = svg("a.graph-node", { href: addressOf(name, type), class: kind, "aria-label": `${KINDS[kind]} ${name}` }, [
    svg("title", name),
    svg("rect", { x, y, width: NODE_WIDTH, height: NODE_HEIGHT, rx: 8 }),
    svg("text.graph-name", { x: x + 12, y: y + 20 }, shortened(kind === "stream" ? name.slice(STREAM.length) : name)),
    note,
  ]);
  const update = () => {
    const rate = kind === "stream" ? null : topicRate(name);
    note.textContent = rate === null ? KINDS[kind] : `${KINDS[kind]} · ${format.rate(rate)}/s`;
  };
  return { element, update };
}

/** Keeps the end of a long name, which tells names of one family apart. */
function shortened(name) {
  return name.length <= NAME_CHARACTERS ? name : `…${name.slice(name.length - NAME_CHARACTERS + 1)}`;
}

/** The figures of a line, on a ground of their own. */
function label(x, y) {
  const ground = svg("rect", { y: (y - 10).toFixed(1), height: 20, rx: 10 });
  const text = svg("text", { x: x.toFixed(1), y: (y + 4).toFixed(1), "text-anchor": "middle" });
  const show = (shown) => {
    const width = shown.length * 6.2 + 14;
    ground.setAttribute("x", (x - width / 2).toFixed(1));
    ground.setAttribute("width", width.toFixed(1));
    text.textContent = shown;
  };
  return { element: svg("g.graph-label", [ground, text]), show };
}
