// Records a second of each topic, from the heads in lists of topics.

import { Rates } from "./rates.js";

const heads = new Rates();

/** Notes the entries of a list, read at this time. */
export function noteHeads(entries, at = Date.now()) {
  for (const { topic, head_seq } of entries) heads.note(topic, head_seq, at);
}

/** Records a second; null while there is one reading only. */
export function topicRate(topic) {
  return heads.rate(topic);
}
