// Depths of the queues that were looked at, kept for ten minutes. The server keeps no history for the console.

const SAMPLES_MAX = 300;

const samplesByQueue = new Map();

/** Notes the state of a queue and the head of its topic. Returns all samples of the queue, the oldest first. */
export function noteDepth(state, headSeq, at = Date.now()) {
  const samples = samplesByQueue.get(state.topic) ?? [];
  const depth = state.ready + state.in_flight + state.delayed;
  if (samples.length && headSeq < samples.at(-1).headSeq) samples.length = 0;
  samples.push({ at, headSeq, depth, ready: state.ready, inFlight: state.in_flight, delayed: state.delayed, dead: state.dead });
  if (samples.length > SAMPLES_MAX) samples.shift();
  samplesByQueue.set(state.topic, samples);
  return samples;
}

/** Jobs a second that came into the queue and that left it, over the last `ms`; null with one sample. */
export function flow(samples, ms = 10_000) {
  const last = samples.at(-1);
  const first = samples.find((sample) => sample.at >= last.at - ms);
  if (first === last) return null;
  const seconds = (last.at - first.at) / 1000;
  const came = last.headSeq - first.headSeq;
  return { came: came / seconds, left: Math.max(came - (last.depth - first.depth), 0) / seconds };
}

/** Points [time, value] of a member. */
export function line(samples, member) {
  return samples.filter((sample) => sample[member] !== null).map((sample) => [sample.at, sample[member]]);
}
