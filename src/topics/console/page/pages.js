// Every page of the console. To add a page:
//
// 1. Write `pages/NAME.js` with `export function open(view) { … }`. It fills `view.root`, at once or later. `view` is described in
//    core/view.js: `view.head(title, …)`, `view.params`, `view.query`, `view.setQuery(…)`, `view.every(ms, task)`, `view.load(place, task)`,
//    `view.signal` (give it to every call), `view.list` (a Table, for the keys `j`, `k` and Enter).
// 2. Add a row here. `:name` in a path is a name, which `view.params.name` has decoded. A page with `label` is in the navigation, below the
//    title `section`; `parent` is the path of the page that the navigation shows for a page without label. `key` is its letter after `g`.
// 3. Its own styles go to `style/NAME.css`, which index.html lists.
//
// Calls of the server are in core/api.js, rights of the key in core/session.js (`can`, `whyNot`), pushed records in core/events.js, text for
// figures in core/format.js, elements in core/dom.js (`h`), and parts to use in parts/: Table, Chart, openDialog, confirmTyped, toast, badge,
// button, scopedButton, segmented, empty, problem, icon.

export const PAGES = [
  { path: "/", label: "Overview", icon: "overview", key: "o", load: () => import("./pages/overview.js") },
  { path: "/topics", label: "Topics", icon: "topics", key: "t", section: "Log", load: () => import("./pages/topics.js") },
  { path: "/topics/:topic", parent: "/topics", load: () => import("./pages/topic.js") },
  { path: "/queues", label: "Queues", icon: "queues", key: "q", section: "Log", load: () => import("./pages/queues.js") },
  { path: "/queues/:queue", parent: "/queues", load: () => import("./pages/queue.js") },
  { path: "/routers", label: "Routers", icon: "routers", key: "r", section: "Log", load: () => import("./pages/routers.js") },
  { path: "/groups", label: "Groups", icon: "groups", key: "c", section: "Log", load: () => import("./pages/groups.js") },
  { path: "/streams", label: "Streams", icon: "streams", key: "s", section: "Streams and Spark", load: () => import("./pages/streams.js") },
  { path: "/streams/:stream", parent: "/streams", load: () => import("./pages/streams.js") },
  { path: "/streams/:stream/:topic", parent: "/streams", load: () => import("./pages/streams.js") },
  { path: "/streams/:stream/:topic/:partition", parent: "/streams", load: () => import("./pages/stream_messages.js") },
  { path: "/pipeline", label: "Pipeline", icon: "pipeline", key: "p", section: "Streams and Spark", load: () => import("./pages/pipeline.js") },
  { path: "/health", label: "Health", icon: "health", key: "h", section: "Server", load: () => import("./pages/health.js") },
  { path: "/settings", label: "Settings", icon: "config", key: "e", section: "Server", load: () => import("./pages/settings.js") },
];
