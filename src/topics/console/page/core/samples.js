// The metrics of the server, read every two seconds while the console is visible, and kept for ten minutes.
//
// Counters become rates here: the difference of two readings. The server keeps no history for the console.

import * as api from "./api.js";
import { Signal } from "./signal.js";

export const SAMPLE_MS = 2000;
const SAMPLES_MAX = 300;

// Readings as { at, metrics }, the oldest first.
const readings = [];

// The newest reading; null before the first, or if the key may not read.
export const newest = new Signal(null);

export function allReadings() {
  return readings;
}

export function forgetReadings() {
  readings.length = 0;
  newest.set(null);
}

export async function read() {
  const metrics = await api.get("/v0/metrics");
  const last = readings.at(-1);
  // The server was started again: its counters begin at 0.
  if (last !== undefined && metrics.uptime_ms < last.metrics.uptime_ms) readings.length = 0;
  readings.push({ at: Date.now(), metrics });
  if (readings.length > SAMPLES_MAX) readings.shift();
  newest.set(readings.at(-1));
}

/** The rate a second of a counter between two readings: rate(a, b, (metrics) => metrics.traffic.append_records). */
export function rateBetween(earlier, later, counter) {
  const seconds = (later.at - earlier.at) / 1000;
  return seconds > 0 ? Math.max(counter(later.metrics) - counter(earlier.metrics), 0) / seconds : 0;
}

/** Rates of a counter as points [time, value], one for each pair of readings. */
export function rates(counter) {
  return readings.slice(1).map((reading, place) => [reading.at, rateBetween(readings[place], reading, counter)]);
}

/** Values of a gauge as points [time, value]. */
export function gauges(gauge) {
  return readings.map((reading) => [reading.at, gauge(reading.metrics)]).filter(([, value]) => value !== undefined);
}

/** The rate over the last `ms`; null with fewer than two readings. */
export function recentRate(counter, ms = 10_000) {
  const last = readings.at(-1);
  const first = readings.find((reading) => reading.at >= (last?.at ?? 0) - ms);
  return last === undefined || first === last ? null : rateBetween(first, last, counter);
}
