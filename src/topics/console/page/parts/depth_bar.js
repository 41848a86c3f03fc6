// The jobs of a queue as one bar: ready, in flight, delayed.

import { svg } from "../core/dom.js";
import { count } from "../core/format.js";

const WIDTH = 200;

/** `deepest` is the number of jobs of a full bar. */
export function depthBar({ ready, in_flight: inFlight, delayed }, deepest) {
  const parts = [
    ["ready", ready],
    ["in-flight", inFlight],
    ["delayed", delayed],
  ];
  const bar = svg("svg.depth-bar", { viewBox: `0 0 ${WIDTH} 8`, preserveAspectRatio: "none", role: "img", "aria-label": `${count(ready)} ready, ${count(inFlight)} in flight, ${count(delayed)} delayed` });
  bar.append(svg("rect.depth-rest", { x: 0, y: 0, width: WIDTH, height: 8 }));
  let x = 0;
  for (const [name, jobs] of parts) {
    const width = (jobs / deepest) * WIDTH;
    if (jobs > 0) bar.append(svg("rect", { class: `depth-${name}`, x: x.toFixed(1), y: 0, width: Math.max(width, 2).toFixed(1), height: 8 }));
    x += width;
  }
  return bar;
}
