// Rates of counters that are read again and again: the difference of two readings.

const WINDOW_MS = 10_000;

export class Rates {
  #keysMax;
  // Readings of a counter as [time, value], the oldest first.
  #readings = new Map();

  constructor(keysMax = 20_000) {
    this.#keysMax = keysMax;
  }

  /** Notes what a counter was at this time. */
  note(key, value, at = Date.now()) {
    if (this.#readings.size > this.#keysMax) this.#readings.clear();
    const readings = this.#readings.get(key) ?? [];
    // What was deleted and made again begins anew.
    if (readings.length && readings.at(-1)[1] > value) readings.length = 0;
    readings.push([at, value]);
    while (readings.length > 2 && readings[1][0] <= at - WINDOW_MS) readings.shift();
    this.#readings.set(key, readings);
  }

  /** The rate a second; null while there is one reading only. */
  rate(key) {
    const readings = this.#readings.get(key) ?? [];
    if (readings.length < 2) return null;
    const [[from, first], [until, last]] = [readings[0], readings.at(-1)];
    return until > from ? ((last - first) * 1000) / (until - from) : null;
  }
}
