// Quantiles of times that the server counts in groups.

/** The groups that were counted between two readings. */
export function difference(later, earlier) {
  return later.map((count, place) => count - (earlier?.[place] ?? 0));
}

/** The time, in the unit of the bounds, that the part `q` of all times does not pass; null without any. */
export function quantile(bounds, groups, q) {
  const total = groups.reduce((sum, count) => sum + count, 0);
  if (total === 0) return null;
  let before = 0;
  for (const [place, count] of groups.entries()) {
    if (before + count >= q * total) {
      const low = place === 0 ? 0 : bounds[place - 1];
      const high = bounds[place] ?? low * 2;
      return low + (high - low) * ((q * total - before) / count);
    }
    before += count;
  }
  return bounds.at(-1);
}
