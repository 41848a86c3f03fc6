// One queue: its depth, the leases and who holds them, and its dead letters.

import * as api from "../core/api.js";
import { clear, h } from "../core/dom.js";
import * as format from "../core/format.js";
import { flow, line, noteDepth } from "../core/queue_samples.js";
import { link } from "../core/router.js";
import { badge, durabilityBadge } from "../parts/badge.js";
import { Chart } from "../parts/chart.js";
import { figureCard } from "../parts/figure.js";
import { DeadLetters } from "./queue_dead.js";
import { Leases } from "./queue_leases.js";

const REFRESH_MS = 2000;
const OLD_MS = 60_000;

export function open(view) {
  const { queue } = view.params;
  const about = h("span.row");
  view.head(queue, { trail: [["Queues", link("/queues")]], about, controls: [h("a.button", { href: link("/topics/:topic", { topic: queue }) }, "Records and settings")] });
  const figures = h("div.figures.five");
  const chart = new Chart({
    label: "Jobs of the queue",
    format: (value) => format.short(value),
    smallestMax: 5,
    series: [
      { name: "Ready", tone: "accent" },
      { name: "In flight", tone: "second" },
      { name: "Delayed", tone: "warn" },
      { name: "Dead", tone: "bad" },
    ],
  });
  const leases = new Leases(view, queue, refresh);
  const dead = new DeadLetters(view, queue, refresh);
  const place = h("div.stack-wide", { hidden: true }, [figures, h("section.card", [h("h2", "Depth"), chart.element]), leases.element, dead.element]);
  const failed = h("div");
  view.root.append(failed, place);

  async function read() {
    const state = await api.get(api.path`/v0/topics/${queue}/queue`, { query: { page_size: leases.pageSize }, signal: view.signal });
    const topic = await api.get(api.path`/v0/topics/${queue}`, { query: { touch: false }, signal: view.signal });
    const samples = noteDepth(state, topic.head_seq);
    place.hidden = false;
    clear(failed);
    clear(about, aboutQueue(topic.config));
    clear(figures, figureCards(state, samples));
    chart.draw(["ready", "inFlight", "delayed", "dead"].map((member) => line(samples, member)));
    leases.show(state, topic.config);
    dead.show(state, topic.config);
  }

  /** After a change: shows its effect at once. A failure shows at the next regular reading. */
  function refresh() {
    read().catch(() => {});
  }

  view.load(failed, read).then(() => view.every(REFRESH_MS, read));
}

function aboutQueue(config) {
  const deaths = config.max_deliveries && config.dead_letter ? `A job dies after ${format.plural(config.max_deliveries, "delivery", "deliveries")}.` : "A job is delivered until it is acked.";
  return [durabilityBadge(config.durability), config.leases_durable ? badge("durable leases", "good", "Leases survive a restart of the server") : null, h("span", `A lease lasts ${format.span(config.lease_ms)}. ${deaths}`)];
}

function figureCards(state, samples) {
  const now = flow(samples);
  const { oldest_ready_age_ms: ageMs } = state;
  const holders = new Set(state.leases.map((lease) => lease.node)).size;
  return [
    figureCard("Ready", format.count(state.ready), "", ageMs === null ? "No job waits" : `The oldest waits for ${format.span(ageMs)}`, { tone: ageMs > OLD_MS ? "warn" : "" }),
    figureCard("In flight", format.count(state.in_flight), "", state.in_flight ? `${format.plural(holders, "worker")}${state.next_cursor ? " or more" : ""}` : "No worker has a job"),
    figureCard("Delayed", format.count(state.delayed), "", "Given back, and due later"),
    figureCard("Dead letters", format.count(state.dead), "", deadNote(state), { tone: state.dead ? "bad" : "" }),
    figureCard("Flow", now === null ? "–" : format.rate(now.left), now === null ? "" : "jobs/s out", now === null ? "Known in a moment" : `${format.rate(now.came)} jobs/s in`, { tone: now !== null && now.came > now.left * 1.5 && now.came > 1 ? "warn" : "" }),
  ];
}

function deadNote(state) {
  if (state.names_hidden) return "This key may not see where they go";
  if (state.dead_letter === null) return "This queue keeps none";
  return `${format.plural(state.dead_lettered, "job")} since the start`;
}
