// Keys that work everywhere. Text fields keep all keys except Escape.

export const KEYS = [
  ["/", "Search on this page"],
  ["j  k", "Next and previous row"],
  ["Enter", "Open the row"],
  ["g o", "Go to the overview"],
  ["g t", "Go to the topics"],
  ["g q", "Go to the queues"],
  ["g r", "Go to the routers"],
  ["g c", "Go to the consumer groups"],
  ["g s", "Go to the streams"],
  ["g p", "Go to the pipeline"],
  ["g h", "Go to health"],
  ["g e", "Go to the settings"],
  ["?", "This help"],
  ["Esc", "Close, or leave the field"],
];

/** `actions` has a function for each of search, next, previous, open, close, help, and `go`, which gets the next letter. */
export function listen(actions) {
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isField(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (isGoing) {
      isGoing = false;
      if (actions.go(event.key)) event.preventDefault();
      return;
    }
    const action = { "/": actions.search, j: actions.next, k: actions.previous, "?": actions.help }[event.key];
    if (action !== undefined) {
      event.preventDefault();
      action();
    } else if (event.key === "g") isGoing = true;
    else if (event.key === "Escape") actions.close();
    else if (event.key === "Enter" && !event.target.closest("a, button, summary, [role=button]")) actions.open();
  });
}

function isField(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}
