// A small line chart of one or two series over time, drawn as SVG.
//
// The top of the scale is a round number; of bytes with `isBytes`.
//
//     const chart = new Chart({ label: "Writes", format: (value) => `${rate(value)} records/s`, series: [{ name: "Records", tone: "accent" }] });
//     chart.draw([[[time, value], …]]);

import { clear, h, svg } from "../core/dom.js";
import { clock, span } from "../core/format.js";

const WIDTH = 600;
const HEIGHT = 140;
const TOP = 8;
const SPAN_MS_MIN = 60_000;
const SPAN_MS_MAX = 600_000;

export class Chart {
  #options;
  #lines = [];
  #now = Date.now();
  #spanMs = SPAN_MS_MIN;

  constructor(options) {
    this.#options = options;
    this.drawing = svg("svg.chart-drawing", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": options.label });
    this.top = h("span.chart-top");
    this.from = h("span");
    this.note = h("div.chart-note", { hidden: true });
    const legend = options.series.length > 1 ? h("div.legend", options.series.map((series) => h("span", { class: series.tone }, series.name))) : null;
    this.element = h("figure.chart", [h("div.chart-area", [this.top, this.drawing, this.note]), h("figcaption.chart-times", [this.from, legend, h("span", "now")])]);
    this.drawing.addEventListener("pointermove", (event) => this.#point(event));
    this.drawing.addEventListener("pointerleave", () => {
      this.note.hidden = true;
    });
  }

  /** `lines` has the points [time, value] of each series, the oldest first. */
  draw(lines) {
    this.#lines = lines;
    this.#now = Math.max(...lines.flatMap((points) => points.map(([at]) => at)), 0) || Date.now();
    const oldest = Math.min(...lines.flatMap((points) => points.map(([at]) => at)), this.#now);
    this.#spanMs = Math.min(Math.max(this.#now - oldest, SPAN_MS_MIN), SPAN_MS_MAX);
    this.from.textContent = `${span(this.#spanMs)} ago`;
    const highest = Math.max(...lines.flatMap((points) => points.map(([, value]) => value)), this.#options.smallestMax ?? 1);
    const largest = this.#options.isBytes ? 2 ** Math.ceil(Math.log2(highest)) : niceMax(highest);
    this.top.textContent = this.#options.format(largest);
    clear(this.drawing, [0.5, 1].map((part) => svg("line.chart-rule", { x1: 0, x2: WIDTH, y1: y(largest * part, largest), y2: y(largest * part, largest) })));
    lines.forEach((points, place) => {
      if (points.length < 2) return;
      const tone = this.#options.series[place].tone;
      const path = points.map(([at, value]) => `${this.#x(at).toFixed(1)},${y(value, largest).toFixed(1)}`).join("L");
      if (place === 0) this.drawing.append(svg("path.chart-fill", { class: tone, d: `M${this.#x(points[0][0]).toFixed(1)},${HEIGHT}L${path}L${WIDTH},${HEIGHT}Z` }));
      this.drawing.append(svg("path.chart-line", { class: tone, d: `M${path}` }));
    });
    const newest = lines.map((points, place) => `${this.#options.series[place].name}: ${points.length ? this.#options.format(points.at(-1)[1]) : "no figure"}`);
    this.drawing.setAttribute("aria-label", `${this.#options.label}. ${newest.join(", ")}`);
  }

  #x(at) {
    return WIDTH - ((this.#now - at) / this.#spanMs) * WIDTH;
  }

  #point(event) {
    const box = this.drawing.getBoundingClientRect();
    const at = this.#now - (1 - (event.clientX - box.left) / box.width) * this.#spanMs;
    const found = this.#lines.map((points) => points.reduce((best, point) => (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), null));
    if (found[0] === null || found[0] === undefined) return;
    const texts = found.map((point, place) => `${this.#options.series.length > 1 ? `${this.#options.series[place].name} ` : ""}${this.#options.format(point[1])}`);
    this.note.textContent = `${clock(found[0][0]).slice(0, 8)} · ${texts.join(" · ")}`;
    this.note.hidden = false;
  }
}

function y(value, largest) {
  return HEIGHT - (value / largest) * (HEIGHT - TOP);
}

function niceMax(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}
