// Light and dark: the system decides, or the user. The choice is the only thing that the console stores.

const NAME = "topics-theme";
const ORDER = ["system", "light", "dark"];

export function theme() {
  const stored = localStorage.getItem(NAME);
  return ORDER.includes(stored) ? stored : "system";
}

export function applyTheme() {
  const chosen = theme();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

/** Goes from system to light, to dark, and back. Returns the choice. */
export function nextTheme() {
  const chosen = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  localStorage.setItem(NAME, chosen);
  applyTheme();
  return chosen;
}
