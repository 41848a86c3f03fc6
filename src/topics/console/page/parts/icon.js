// Small line icons, drawn here so that no file from elsewhere is needed.

import { svg } from "../core/dom.js";

const PATHS = {
  overview: "M4 19V9m5 10V5m5 14v-7m5 7V8",
  topics: "M4 6h16M4 12h11M4 18h7",
  queues: "M4 5h16v5H4zM4 14h16v5H4zM8 7.500h.01M8 16.500h.01",
  routers: "M6 6a2 2 0 1 0 0 .01M18 6a2 2 0 1 0 0 .01M18 18a2 2 0 1 0 0 .01M8 6h8M7 7.500 16.500 17",
  groups: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zm8 1a2.500 2.500 0 1 0 0-5M3 19c0-3 2-5 5-5s5 2 5 5m2-5c3 0 5 1.500 5 4.500",
  streams: "M3 8c3-3 6 3 9 0s6 3 9 0M3 16c3-3 6 3 9 0s6 3 9 0",
  pipeline: "M5 4v6m0 4v6M5 10a2 2 0 1 0 0 4 2 2 0 0 0 0-4zm2 2h10m0-4 4 4-4 4",
  health: "M3 12h4l3-7 4 14 3-7h4",
  config: "M4 7h10m4 0h2M4 17h2m4 0h10M16 5v4M8 15v4",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zm5 12 4 4",
  play: "M8 5v14l11-7z",
  pause: "M8 5v14M16 5v14",
  plus: "M12 5v14M5 12h14",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  close: "M6 6l12 12M18 6 6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  key: "M14 10a4 4 0 1 0-3.500 4L12 15.500h2V18h2.500v2.500H20V17l-6-6",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  help: "M9 9a3 3 0 1 1 4.500 2.600c-1 .6-1.500 1.200-1.500 2.400m0 3.500v.01",
  alert: "M12 4 2.500 20h19zM12 10v4m0 3v.01",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  chevron: "M9 6l6 6-6 6",
  refresh: "M20 11a8 8 0 1 0-2 6m2-11v5h-5",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1m2 4a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
};

export function icon(name) {
  return svg("svg.icon", { viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, svg("path", { d: PATHS[name] }));
}
