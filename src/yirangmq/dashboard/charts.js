/* Small charts without a time axis of their own: sparklines, bars, failures by day. Charts over time are in timechart.js. */

import { h, mark, put, svg } from "./dom.js";
import { count } from "./format.js";

const WIDTH = 100;
const HEIGHT = 24;
const MOST_POINTS = 60;
const LEAST_SECONDS = 60;

/** A line without axes; its last value is a text beside it. */
export class Sparkline {
  constructor(kind, seconds) {
    this.seconds = seconds;
    this.area = svg("path", { class: "spark-area" });
    this.line = svg("path", { class: "spark-line" });
    const view = {
      class: "spark",
      "data-kind": kind,
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
    };
    this.node = svg("svg", { ...view, "aria-hidden": "true" }, this.area, this.line);
  }

  /** `[[seconds, value], …]`, oldest first. */
  draw(points) {
    const drawn = thinned(points, MOST_POINTS);
    if (drawn.length < 2) {
      mark(this.line, "d", null);
      mark(this.area, "d", null);
      return;
    }
    const end = drawn[drawn.length - 1][0];
    const seconds = reach(drawn, this.seconds);
    const most = Math.max(1, ...drawn.map(([, value]) => value));
    const spots = drawn.map(([at, value]) => {
      const x = WIDTH - ((end - at) / seconds) * WIDTH;
      return `${x.toFixed(1)} ${(HEIGHT - 1.5 - (value / most) * (HEIGHT - 3)).toFixed(1)}`;
    });
    const path = `M${spots.join("L")}`;
    mark(this.line, "d", path);
    mark(this.area, "d", `${path}L${WIDTH} ${HEIGHT}L${spots[0].split(" ")[0]} ${HEIGHT}Z`);
  }
}

/** Seconds that a drawing shows: the known time, at most `most`. */
export function reach(points, most) {
  const known = points.length === 0 ? 0 : points[points.length - 1][0] - points[0][0];
  return Math.min(most, Math.max(LEAST_SECONDS, known));
}

/** At most so many points: of neighbours the larger one stays, so that no peak is lost. */
export function thinned(points, most) {
  if (points.length <= most) return points;
  const step = points.length / most;
  const kept = [];
  for (let index = 0; index < most; index += 1) {
    const part = points.slice(Math.floor(index * step), Math.floor((index + 1) * step));
    kept.push(part.reduce((high, point) => (point[1] >= high[1] ? point : high)));
  }
  kept[kept.length - 1] = [points[points.length - 1][0], kept[kept.length - 1][1]];
  return kept;
}

/** Bars with names: `[[name, count, hint], …]`, the longest first. `choose(name)` when one is clicked; null: none can be. */
export class Bars {
  constructor(choose) {
    this.choose = choose;
    this.node = h("ul", { class: "bars" });
  }

  draw(entries) {
    const most = Math.max(1, ...entries.map(([, value]) => value));
    this.node.replaceChildren(...entries.map(([name, value, hint]) => this.#bar(name, value, hint, value / most)));
  }

  #bar(name, value, hint, share) {
    const fill = h("span", { class: "bar-fill" });
    fill.style.width = `${Math.max(1, share * 100)}%`;
    const parts = [h("span", { class: "bar-name" }, name), h("span", { class: "bar" }, fill), h("b", {}, count(value))];
    const props = { class: "bar-row", "data-reason": name, title: hint };
    if (this.choose === null) return h("li", {}, h("span", props, parts));
    return h("li", {}, h("button", { ...props, type: "button", onclick: () => this.choose(name) }, parts));
  }
}

/** Failures of each day, one colour a reason: the `byDay` of the dead letters' statistics. */
export class Days {
  constructor() {
    this.drawing = svg("svg", { class: "days", viewBox: "0 0 600 140", preserveAspectRatio: "none", role: "img" });
    this.counts = h("div", { class: "days-counts", "aria-hidden": "true" });
    this.dates = h("div", { class: "days-dates", "aria-hidden": "true" });
    this.node = h("div", { class: "days-chart" }, this.counts, this.drawing, this.dates);
  }

  draw(byDay, today) {
    const days = everyDay(byDay, today);
    const most = even(Math.max(...days.map((day) => day.total), 2));
    const order = Object.keys(Object.assign({}, ...days.map((day) => day.byReason))).sort();
    const step = 600 / Math.max(days.length, 14);
    const left = 600 - step * days.length;
    const bars = days.flatMap((day, index) => stack(day, order, left + index * step, step, most));
    const grid = [0, 70].map((y) => svg("line", { class: "grid", x1: 0, x2: 600, y1: y + 0.5, y2: y + 0.5 }));
    this.drawing.replaceChildren(
      ...grid,
      ...bars,
      svg("line", { class: "axis", x1: 0, x2: 600, y1: 139.5, y2: 139.5 }),
    );
    mark(this.drawing, "aria-label", days.map((day) => `${day.day}: ${day.total}`).join(", "));
    this.counts.replaceChildren(...[most, most / 2, 0].map((value) => h("span", {}, count(value))));
    const every = Math.ceil(days.length / MOST_DATES);
    const dated = days.map(({ day }, index) => ({ day, at: (left + (index + 0.5) * step) / 600 }));
    this.dates.replaceChildren(...dated.filter((_, index) => (days.length - 1 - index) % every === 0).map(dateLabel));
  }
}

/** At most so many dates below the bars. */
const MOST_DATES = 7;

function dateLabel({ day, at }) {
  const label = h("span", {}, day.slice(5));
  label.style.left = `${at * 100}%`;
  return label;
}

/** The top of an axis: one or two leading digits, and a whole number in the middle. */
function even(value) {
  const size = 10 ** Math.max(0, Math.floor(Math.log10(value)) - 1);
  return Math.ceil(value / size / 2) * size * 2;
}

/** The bars of one day; the reasons of all days are in one order. */
function stack(day, order, x, step, most) {
  let top = 139;
  const parts = order.filter((reason) => day.byReason[reason]).map((reason) => [reason, day.byReason[reason]]);
  return parts.map(([reason, value]) => {
    const height = (value / most) * 138;
    top -= height;
    const box = { x: x + step * 0.1, y: top, width: step * 0.8, height };
    const title = svg("title", {}, `${day.day}: ${count(value)} ${reason}`);
    return svg("rect", { ...box, class: "day", "data-reason": reason }, title);
  });
}

/** All days from the first to today, also those without failures. */
function everyDay(byDay, today) {
  if (byDay.length === 0) return [];
  const known = new Map(byDay.map((day) => [day.day, day]));
  const days = [];
  const end = Math.max(Date.parse(today), Date.parse(byDay[byDay.length - 1].day));
  for (let at = Date.parse(byDay[0].day); at <= end && days.length < 400; at += 86_400_000) {
    const day = new Date(at).toISOString().slice(0, 10);
    days.push(known.get(day) ?? { day, total: 0, byReason: {} });
  }
  return days;
}
