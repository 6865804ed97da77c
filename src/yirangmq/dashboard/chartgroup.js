/* Charts with one time axis: the choice of ten minutes, an hour, a day or a week, one cursor and one zoom for all. */

import { Refused, get, withQuery } from "./api.js";
import { h, mark, put } from "./dom.js";
import { brief, clock, rate, short } from "./format.js";
import { TimeChart } from "./timechart.js";
import { joined, samplesOf, series } from "./timeseries.js";

const RANGES = {
  minutes: { label: "10 minutes", seconds: 600, least: 60 },
  hour: { label: "hour", seconds: 3600, least: 300, everyMs: 10_000 },
  day: { label: "day", seconds: 86_400, least: 3600, everyMs: 60_000 },
  week: { label: "week", seconds: 604_800, least: 21_600, everyMs: 60_000 },
};
const STEPS = 12;
const LEAST_ZOOM_SECONDS = 10;
const lastMinute = (metric) => (group) => group.view.live.rate(group.queue, metric);
const counted = (value) => short(Math.round(value));

export const RATES = {
  title: "Rates",
  unit: "messages/s",
  steps: "rate",
  rest: "last minute",
  lines: [
    { name: "in", kind: "in", column: "in", format: rate, mean: lastMinute("published") },
    { name: "out", kind: "out", column: "out", format: rate, mean: lastMinute("acked") },
    { name: "failed", kind: "fail", column: "failed", format: rate, mean: lastMinute("failed") },
  ],
};
export const DEPTH = {
  title: "Messages",
  unit: "messages",
  steps: "count",
  lines: [
    { name: "backlog", kind: "waiting", column: "waiting", format: counted },
    { name: "leased", kind: "leased", column: "leased", format: counted },
    { name: "dead", kind: "dead", column: "dead", format: counted },
  ],
};
export const AGE = {
  title: "Age of the next message",
  unit: "age",
  steps: "span",
  lines: [{ name: "", kind: "age", column: "age", format: brief }],
};
export const DEAD = {
  title: "Dead letters",
  unit: "messages",
  steps: "count",
  lines: [{ name: "", kind: "dead", column: "dead", format: counted }],
};

let groups = 0;

export class ChartGroup {
  /** `queue` null: all queues together. */
  constructor(view, queue, charts) {
    Object.assign(this, { view, queue });
    groups += 1;
    this.key = `charts-${groups}`;
    this.zoomed = null;
    this.found = null;
    this.askedAt = -Infinity;
    const asked = view.query.get("range");
    this.range = asked in RANGES ? asked : "minutes";
    this.help = h("p", { class: "quiet", id: `${this.key}-help` }, "Left and right arrows move the time cursor, plus and minus zoom, 0 shows the whole range.");
    this.spoken = h("p", { class: "quiet", role: "status" });
    this.charts = charts.map((chart) => new TimeChart(this, chart));
    this.reset = h("button", { type: "button", class: "small", hidden: true, onclick: () => this.zoom(null) }, "Show the whole range");
    this.choices = h("span", { class: "choices", role: "group", "aria-label": "Time range of the charts" }, Object.entries(RANGES).map(([name, { label }]) => this.#choice(name, label)));
    this.hint = h("span", { class: "muted chart-hint" }, "Drag across a chart to zoom.");
    this.node = h(
      "section",
      { class: "charts-part", "aria-label": "Charts" },
      h("div", { class: "bar-line" }, this.choices, this.reset, this.hint),
      h("div", { class: "charts" }, this.charts.map((chart) => chart.node)),
      this.help,
      this.spoken,
    );
    this.#watchTheme();
    view.signal.addEventListener("abort", () => this.charts.forEach((chart) => chart.close()));
  }

  get isLong() {
    return RANGES[this.range].seconds > 86_000;
  }

  #choice(name, label) {
    const button = h("button", { type: "button", class: "small", "data-range": name, "aria-pressed": String(name === this.range) }, label);
    button.addEventListener("click", () => this.choose(name));
    return button;
  }

  choose(name) {
    this.range = name;
    this.found = null;
    this.askedAt = -Infinity;
    this.#keepZoom(null);
    for (const button of this.choices.children) mark(button, "aria-pressed", String(button.dataset.range === name));
    this.view.setQuery({ range: name === "minutes" ? "" : name });
    this.show();
  }

  #watchTheme() {
    const recolour = () => this.charts.forEach((chart) => chart.recolour());
    const { signal } = this.view;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour, { signal });
    const observer = new MutationObserver(recolour);
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    signal.addEventListener("abort", () => observer.disconnect());
  }

  // -- numbers ---------------------------------------------------------------------------------------------------

  /** Draw the known samples, and request newer ones when they are due. Called with every new status. */
  show() {
    this.#draw();
    const { everyMs } = RANGES[this.range];
    if (everyMs === undefined || performance.now() - this.askedAt < everyMs) return;
    this.askedAt = performance.now();
    this.#ask(this.range);
  }

  async #ask(range) {
    const query = this.queue === null ? { range, onlyTotals: true } : { range, queue: this.queue };
    try {
      const found = await get(withQuery("trends", query), { signal: this.view.signal });
      if (range !== this.range) return;
      this.found = samplesOf(found, this.queue);
      this.#draw();
    } catch (error) {
      if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
    }
  }

  #draw() {
    const { history } = this.view.live;
    const { seconds, least, everyMs } = RANGES[this.range];
    const recent = history.samples(this.queue, everyMs === undefined ? seconds : everyMs / 1000);
    if (everyMs !== undefined && this.found === null) return;
    const drawn = series(everyMs === undefined ? recent : joined(this.found, latest(recent)));
    const end = drawn.at[drawn.at.length - 1] ?? Date.now() / 1000;
    const known = end - (drawn.at[0] ?? end);
    const [from, until] = this.zoomed ?? [end - Math.min(seconds, Math.max(least, known)), end];
    this.seen = [from, until];
    for (const chart of this.charts) chart.draw(drawn, from, until);
    mark(this.node, "data-drawn", this.range);
  }

  // -- the cursor and the zoom -----------------------------------------------------------------------------------

  /** Show from one moment to another, `[from, until]` in seconds; null: the whole range. */
  zoom(range) {
    this.#keepZoom(range);
    this.#draw();
  }

  #keepZoom(range) {
    this.zoomed = range;
    this.reset.hidden = range === null;
    this.hint.hidden = range !== null;
  }

  press(event, chart) {
    if (event.ctrlKey || event.metaKey || event.altKey || !chart.series?.at.length) return;
    const { at } = chart.series;
    const last = at.length - 1;
    const here = chart.plot?.cursor.idx ?? null;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -STEPS, PageDown: STEPS, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      const inside = at.flatMap((moment, index) => (moment >= this.seen[0] && moment <= this.seen[1] ? [index] : []));
      const [low, high] = [inside[0] ?? 0, inside[inside.length - 1] ?? last];
      this.#point(Math.min(high, Math.max(low, (here ?? high + 1) + moves[event.key])), chart);
    } else if (event.key === "Escape" && here !== null) this.#point(null, chart);
    else if (event.key === "+" || event.key === "-") this.#scale(event.key === "+" ? 0.5 : 2, at[here ?? last]);
    else if (event.key === "0") this.zoom(null);
    else return;
    event.preventDefault();
  }

  #point(index, chart) {
    for (const each of this.charts) each.point(index);
    put(this.spoken, index === null ? "" : `${clock(new Date(chart.series.at[index] * 1000))}. ${chart.words}`);
  }

  #scale(factor, middle) {
    const [from, until] = this.seen;
    const width = (until - from) * factor;
    const { seconds } = RANGES[this.range];
    if (width < LEAST_ZOOM_SECONDS) return;
    if (width >= seconds) this.zoom(null);
    else {
      const begin = Math.min(Math.max(middle - width / 2, from - width), until - width / factor + width);
      this.zoom([begin, begin + width]);
    }
  }
}

/** The last sample alone. */
function latest(samples) {
  return Object.fromEntries(Object.entries(samples).map(([name, values]) => [name, values.slice(-1)]));
}
