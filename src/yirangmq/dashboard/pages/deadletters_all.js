/* Dead letters of all queues: their number, reasons and growth. */

import { Refused, get, path, withQuery } from "../api.js";
import { ChartGroup, DEAD } from "../chartgroup.js";
import { Bars, Days } from "../charts.js";
import { h, put } from "../dom.js";
import { count, plural, relative, span } from "../format.js";
import { link } from "../router.js";
import { sheet } from "../sheet.js";
import { REASONS } from "../states.js";
import { samplesOf } from "../timeseries.js";

const EVERY_MS = 5000;
const SHOWN = 50;
/* Queues in the table, those with the most dead letters. */
const MOST_COUNTED = 50_000;
/* The reasons of a queue are counted if it has at most this many dead letters: counting reads each of them. */
const FEWEST = { minutes: 0, hour: 20, day: 4 };
/* Slots that a range must have before its first slot is used: a slot has the highest number of its time. Until then the
 * shorter range reaches back as far. */
const DAY_SECONDS = 86_400;
const GROWTH_MS = 60_000;

export default {
  route: "/dead-letters",
  title: () => "Dead letters",
  nav: { label: "Dead letters", order: 12 },
  mount: (view) => new AllDeadLetters(view),
};

class AllDeadLetters {
  constructor(view) {
    this.view = view;
    this.known = new Map();
    /* By queue: the statistics, and for how many dead letters they were asked. */
    this.growth = new Map();
    this.summary = h("p", { class: "muted" });
    this.bars = new Bars(null);
    this.days = new Days();
    this.reasons = h("section", { class: "panel chart" }, h("h2", {}, "Reasons"), this.bars.node);
    const byDay = h("section", { class: "panel chart" }, h("h2", {}, "Failed by day (UTC)"), this.days.node);
    this.parts = h("div", { class: "letters-charts", hidden: true }, this.reasons, byDay);
    this.uncounted = h("p", { class: "muted", hidden: true });
    this.charts = new ChartGroup(view, null, [DEAD]);
    this.table = sheet(this.#columns(), "dead-queues", "Queues with dead letters");
    this.empty = h(
      "div",
      { class: "empty", hidden: true },
      h("h3", {}, "No dead letters"),
      h("p", {}, "A message becomes a dead letter when it fails more often than the policy of its queue allows."),
    );
    view.root.append(h("h1", {}, "Dead letters"), this.summary, this.table.node, this.empty, this.parts, this.uncounted, this.charts.node);
    view.live.listen(() => this.charts.show(), view.signal);
    this.#watch();
  }

  #columns() {
    const stats = (row) => this.known.get(row.queue)?.stats;
    const grown = (row, range) => {
      const value = this.growth.get(row.queue)?.[range];
      return value === undefined || value === null ? "–" : value > 0 ? `+${count(value)}` : count(value);
    };
    return [
      { name: "queue", isHead: true, of: (row) => h("a", { href: link("queues", row.queue, "dead-letters") }, row.queue) },
      { name: "dead", isNumber: true, of: (row) => count(row.dead) },
      { name: "last hour", isNumber: true, of: (row) => grown(row, "hour") },
      { name: "last day", isNumber: true, of: (row) => grown(row, "day") },
      { name: "parked", isNumber: true, of: (row) => count(row.parked) },
      { name: "most frequent reason", isLong: true, of: (row) => reason(stats(row)) },
      { name: "oldest", isNumber: true, of: (row) => relative(stats(row)?.oldest, this.view.live.now()) },
      { name: "latest", isNumber: true, of: (row) => relative(stats(row)?.newest, this.view.live.now()) },
    ];
  }

  async #watch() {
    const { signal, live } = this.view;
    while (!signal.aborted) {
      try {
        const query = { sort: "-dead", limit: SHOWN };
        const { queues, all } = await get(withQuery("queues", query), { signal });
        const rows = queues.filter((row) => row.dead > 0 || row.parked > 0);
        this.#show(rows, all);
        for (const row of rows) await this.#tryToCount(row);
        this.#show(rows, all);
      } catch (error) {
        if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, live.phase === "live" ? EVERY_MS : EVERY_MS * 3));
    }
  }

  /** A token may list a queue without the right to read its messages; the other queues are still counted. */
  async #tryToCount(row) {
    try {
      await this.#countReasons(row);
    } catch (error) {
      if (!(error instanceof Refused) || error.isLost) throw error;
      this.known.set(row.queue, { dead: row.dead, stats: null });
    }
  }

  /** Request the reasons of a queue if the number of its dead letters has changed. */
  async #countReasons({ queue, dead }) {
    const { signal } = this.view;
    const known = this.known.get(queue);
    if (known?.dead !== dead && dead <= MOST_COUNTED) {
      const stats = await get(path`queues/${queue}/dead-letters/stats`, { signal, patience: 0 });
      this.known.set(queue, { dead, stats });
    }
    const grown = this.growth.get(queue);
    if (grown?.dead === dead && performance.now() - grown.askedAt < GROWTH_MS) return;
    const found = { dead, askedAt: performance.now() };
    let before = null;
    for (const [range, fewest] of Object.entries(FEWEST)) {
      const samples = samplesOf(await get(withQuery("trends", { queue, range }), { signal }), queue);
      if (samples.at.length > fewest) before = samples.dead[0] ?? 0;
      found[range] = before === null ? null : dead - before;
    }
    this.growth.set(queue, found);
  }

  #show(rows, all) {
    const now = this.view.live.now();
    const found = rows.map((row) => this.known.get(row.queue)?.stats).filter(Boolean);
    const where = rows.length === SHOWN ? `, the ${count(SHOWN)} queues with the most` : ` in ${plural(rows.length, "queue")}`;
    const uptime = this.view.live.status?.uptimeSec ?? DAY_SECONDS;
    const since = uptime < DAY_SECONDS && rows.length > 0 ? ` Growth is known since the server started, ${span(Math.floor(uptime))} ago.` : "";
    put(this.summary, `${plural(all.dead, "dead letter")}${rows.length > 0 ? where : ""}, ${count(all.parked)} parked.${since}`);
    this.table.show(rows, (row) => row.queue);
    this.empty.hidden = rows.length > 0;
    this.parts.hidden = found.length === 0;
    const many = rows.filter((row) => row.dead > MOST_COUNTED);
    this.uncounted.hidden = many.length === 0;
    put(this.uncounted, `Reasons are counted for queues with at most ${count(MOST_COUNTED)} dead letters.`);
    this.bars.draw(sums(found.map((stats) => stats.byReason)).map(([name, total]) => [name, total, REASONS[name] ?? ""]));
    this.days.draw(daysOf(found), new Date(now).toISOString().slice(0, 10));
  }
}

function reason(stats) {
  const [first] = Object.entries(stats?.byReason ?? {});
  if (first === undefined) return "–";
  return h("span", { class: "reason", "data-reason": first[0] }, `${first[0]} (${count(first[1])})`);
}

/** The sums of objects of numbers, the largest first. */
function sums(found) {
  const all = {};
  for (const one of found) for (const [name, value] of Object.entries(one)) all[name] = (all[name] ?? 0) + value;
  return Object.entries(all).sort((one, other) => other[1] - one[1]);
}

function daysOf(found) {
  const days = new Map();
  for (const stats of found) {
    for (const { day, total, byReason } of stats.byDay) {
      const before = days.get(day) ?? { day, total: 0, byReason: {} };
      days.set(day, { day, total: before.total + total, byReason: Object.fromEntries(sums([before.byReason, byReason])) });
    }
  }
  return [...days.values()].sort((one, other) => (one.day < other.day ? -1 : 1));
}
