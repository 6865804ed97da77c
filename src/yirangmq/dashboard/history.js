/* Samples of each queue of the last minutes: those that the server kept, and those received since. */

import { rates } from "./timeseries.js";

export const KEPT = 800;
/* Samples: ten minutes at one a second, and those that the server had before. */
const METRICS = ["waiting", "age", "leased", "dead", "published", "acked", "failed"];
const RATE_SECONDS = 60;
/* The window of every rate that is a number, as in `status`, `top` and the list of topics. */

/** Samples of all queues, taken at the same moments: one ring of moments, and one of numbers for each. */
export class History {
  constructor() {
    this.times = new Float64Array(KEPT);
    this.length = 0;
    this.queues = new Map();
    this.all = series();
  }

  /** One sample: the rows of the status, the moment in seconds, and what all queues are together. */
  add(rows, at, all = null) {
    const slot = this.length % KEPT;
    this.times[slot] = at;
    for (const values of this.queues.values()) for (const metric of METRICS) values[metric][slot] = NaN;
    for (const metric of METRICS) this.all[metric][slot] = 0;
    for (const row of rows) this.#addRow(row, slot);
    if (all !== null) this.#addAll(all, slot);
    this.length += 1;
  }

  /** The age is that of the rows. */
  #addAll(all, slot) {
    const now = { waiting: waiting(all), leased: all.leased, dead: all.dead, ...all.totals };
    for (const metric of METRICS) if (metric !== "age") this.all[metric][slot] = now[metric];
  }

  #addRow(row, slot) {
    let values = this.queues.get(row.queue);
    if (values === undefined) this.queues.set(row.queue, (values = series()));
    const now = {
      waiting: waiting(row),
      age: row.headAgeSec ?? 0,
      leased: row.leased,
      dead: row.dead,
      ...row.totals,
    };
    for (const metric of METRICS) {
      values[metric][slot] = now[metric];
      const sum = this.all[metric];
      sum[slot] = metric === "age" ? Math.max(sum[slot], now.age) : sum[slot] + now[metric];
    }
  }

  /** Forget all queues but these. */
  keep(rows) {
    const names = new Set(rows.map((row) => row.queue));
    for (const name of this.queues.keys()) if (!names.has(name)) this.queues.delete(name);
  }

  /** Add the samples that the server has kept: `{at, all, queues}` of /v1/trends. Only for an empty history. */
  fill({ at, all, queues }) {
    const moments = at.map((iso) => Date.parse(iso) / 1000);
    const rowOf = (queue, columns, index) => {
      const value = (metric) => columns[metric][index];
      const totals = { published: value("published"), acked: value("acked"), failed: value("failed") };
      return {
        queue,
        ready: value("waiting"),
        delayed: 0,
        headAgeSec: value("ageSec"),
        leased: value("leased"),
        dead: value("dead"),
        totals,
      };
    };
    moments.forEach((moment, index) => {
      const rows = Object.entries(queues).map(([queue, columns]) => rowOf(queue, columns, index));
      this.add(
        rows.filter((row) => row.ready !== null),
        moment,
        rowOf("", all, index),
      );
    });
  }

  /** `[[seconds, value], …]` of one metric of a queue (null: of all), oldest first, of the last `seconds`. */
  points(queue, metric, seconds) {
    const values = (queue === null ? this.all : this.queues.get(queue))?.[metric];
    const found = [];
    if (values === undefined || this.length === 0) return found;
    const first = this.times[(this.length - 1) % KEPT] - seconds;
    for (let index = this.length - 1; index >= 0 && index > this.length - KEPT; index -= 1) {
      const slot = index % KEPT;
      if (this.times[slot] < first) break;
      if (!Number.isNaN(values[slot])) found.push([this.times[slot], values[slot]]);
    }
    return found.reverse();
  }

  /** All metrics of the last `seconds` at the moments of the samples, oldest first, in the form that `series` reads. */
  samples(queue, seconds) {
    const values = queue === null ? this.all : this.queues.get(queue);
    const found = { at: [], ...Object.fromEntries(METRICS.map((metric) => [metric, []])) };
    if (values === undefined || this.length === 0) return found;
    const end = this.times[(this.length - 1) % KEPT];
    const oldest = Math.max(0, this.length - KEPT);
    let begin = this.length - 1;
    while (begin > oldest && end - this.times[(begin - 1) % KEPT] <= seconds) begin -= 1;
    for (let index = begin; index < this.length; index += 1) {
      const slot = index % KEPT;
      found.at.push(this.times[slot]);
      for (const metric of METRICS) found[metric].push(Number.isNaN(values[metric][slot]) ? null : values[metric][slot]);
    }
    return found;
  }

  /** Per second, of a counter: `[[seconds, rate], …]`. */
  rates(queue, metric, seconds) {
    const samples = this.samples(queue, seconds);
    return rates(samples.at, samples[metric]).flatMap((value, index) => (value === null ? [] : [[samples.at[index], value]]));
  }

  /** The mean of the last minute, as the server's own rates; null as long as there are not two samples. */
  rate(queue, metric) {
    const points = this.points(queue, metric, RATE_SECONDS);
    if (points.length < 2) return null;
    const [first, last] = [points[0], points[points.length - 1]];
    return last[0] > first[0] ? Math.max(0, (last[1] - first[1]) / (last[0] - first[0])) : null;
  }
}

function series() {
  return Object.fromEntries(METRICS.map((metric) => [metric, new Float64Array(KEPT).fill(NaN)]));
}

/** The backlog of a queue. */
export function waiting(row) {
  return row.ready + row.delayed + (row.held ?? 0);
}
