// Addresses of the console: `#/topics/orders?seq=17`. The part after `#` is never sent to the server.

/** The address of a page: link("/topics/:topic", { topic: "orders" }, { seq: 17 }). */
export function link(pattern, params = {}, query = {}) {
  const filled = pattern.replace(/:([a-z_]+)/g, (_, name) => encodeURIComponent(params[name]));
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#${filled}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export function go(address) {
  location.hash = address;
}

/** Path and query of the address bar. */
export function here() {
  const text = location.hash.replace(/^#/, "") || "/";
  const [path, query = ""] = splitOnce(text, "?");
  return { path: path.startsWith("/") ? path : "/", query: new URLSearchParams(query) };
}

/** Writes the query of the current page into the address bar, without an entry in the history. */
export function replaceQuery(values) {
  const { path, query } = here();
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined || value === null || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  history.replaceState(null, "", `#${path}${text ? `?${text}` : ""}`);
}

/** The page of a path and the names in it; null if there is none. */
export function match(pages, path) {
  for (const page of pages) {
    const params = matchOne(page.path, path);
    if (params !== null) return { page, params };
  }
  return null;
}

function matchOne(pattern, path) {
  const wanted = pattern.split("/");
  const given = path.split("/");
  if (wanted.length !== given.length) return null;
  const params = {};
  for (const [place, part] of wanted.entries()) {
    if (part.startsWith(":")) {
      try {
        params[part.slice(1)] = decodeURIComponent(given[place]);
      } catch {
        return null;
      }
      if (!given[place]) return null;
    } else if (part !== given[place]) return null;
  }
  return params;
}

function splitOnce(text, separator) {
  const place = text.indexOf(separator);
  return place < 0 ? [text] : [text.slice(0, place), text.slice(place + 1)];
}
