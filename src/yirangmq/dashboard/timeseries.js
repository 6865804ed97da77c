/* Series for charts: counts as they are, totals as rates per second, all at the same moments. Pure. */

export const SMOOTH_SECONDS = 3;
/* A rate is the mean of at least so many seconds: single samples of a second jump up and down. */
const GAP_SLOTS = 3;
const LEAST_GAP_SECONDS = 60;
const GAUGES = { waiting: "waiting", age: "age", leased: "leased", dead: "dead" };
const TOTALS = { in: "published", out: "acked", failed: "failed" };

/** `samples`: `{at: seconds[], waiting, age, leased, dead, published, acked, failed}`, oldest first, null where there is no
 * number. Answers `{at, waiting, age, leased, dead, in, out, failed}`; in a gap, in which the server did not run, a null. */
export function series(samples) {
  const order = withGaps(samples.at);
  const at = order.map((index) => (index < 0 ? (samples.at[-index - 1] + samples.at[-index]) / 2 : samples.at[index]));
  const pick = (values) => order.map((index) => (index < 0 ? null : values[index]));
  const found = { at };
  for (const [name, metric] of Object.entries(GAUGES)) found[name] = pick(samples[metric]);
  for (const [name, metric] of Object.entries(TOTALS)) found[name] = pick(rates(samples.at, samples[metric]));
  return found;
}

/** The indexes of the samples; -n stands for a gap before sample n. */
function withGaps(at) {
  const steps = at.slice(1).map((moment, index) => moment - at[index]);
  const usual = [...steps].sort((one, other) => one - other)[Math.floor(steps.length / 2)] ?? 0;
  const longest = Math.max(LEAST_GAP_SECONDS, GAP_SLOTS * usual);
  return at.flatMap((_, index) => (index > 0 && steps[index - 1] > longest ? [-index, index] : [index]));
}

/** Per second, of a total: null before the second sample. A total that fell began anew. */
export function rates(at, totals) {
  const found = [];
  let first = 0;
  for (let last = 0; last < at.length; last += 1) {
    while (first < last && (totals[first] === null || at[last] - at[first + 1] >= SMOOTH_SECONDS)) first += 1;
    if (first === last && last > 0 && totals[last - 1] !== null) first = last - 1;
    const seconds = at[last] - at[first];
    const isKnown = seconds > 0 && totals[first] !== null && totals[last] !== null;
    found.push(isKnown ? Math.max(0, totals[last] - totals[first]) / seconds : null);
    if (totals[last] === null || totals[last] < totals[first]) first = last;
  }
  return found;
}

/** Samples from the answer of /v1/trends, of one queue or, null, of all. */
export function samplesOf({ at, all, queues }, queue) {
  const columns = (queue === null ? all : queues[queue]) ?? Object.fromEntries(Object.keys(all).map((name) => [name, at.map(() => null)]));
  const { ageSec, ...rest } = columns;
  /* A queue without a backlog has no age; that is drawn as 0. */
  const age = ageSec.map((value, index) => value ?? (rest.waiting[index] === null ? null : 0));
  return { at: at.map((iso) => Date.parse(iso) / 1000), age, ...rest };
}

/** The samples, and those of `newer` that come after them. */
export function joined(samples, newer) {
  const end = samples.at[samples.at.length - 1] ?? -Infinity;
  const first = newer.at.findIndex((at) => at > end);
  if (first < 0) return samples;
  return Object.fromEntries(Object.keys(samples).map((name) => [name, [...samples[name], ...newer[name].slice(first)]]));
}
