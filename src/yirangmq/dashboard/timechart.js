/* Lines over the last minutes, with axes; under the pointer the numbers of that moment. */

import { reach, thinned } from "./charts.js";
import { h, mark, put, svg } from "./dom.js";
import { brief, clock } from "./format.js";

const HEIGHT = 150;
const LEFT = 44;
const BOTTOM = 18;
const TOP = 8;
const MOST_POINTS = 240;

/** `lines`: `[{name, kind, say}]`; `say` puts a number into words. */
export class TimeChart {
  constructor(title, lines, seconds) {
    this.lines = lines.map((line) => ({
      ...line,
      points: [],
      path: svg("path", { class: "line", "data-kind": line.kind }),
    }));
    this.seconds = seconds;
    this.width = 400;
    this.over = null;
    this.grid = svg("g", { class: "grid" });
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    const paths = this.lines.map((line) => line.path);
    this.drawing = svg("svg", { class: "timechart", height: HEIGHT, role: "img" }, this.grid, paths, this.cursor);
    this.moment = h("span", { class: "chart-moment" });
    const head = h("figcaption", {}, h("span", { class: "chart-title" }, title), this.#legend(), this.moment);
    this.node = h("figure", { class: "chart panel" }, head, this.drawing);
    this.title = title;
    this.#watch();
  }

  #legend() {
    return this.lines.map((line) => {
      line.value = h("b", {}, "–");
      return h("span", { class: "legend", "data-kind": line.kind }, line.name, line.value);
    });
  }

  #watch() {
    new ResizeObserver(([entry]) => {
      this.width = Math.max(200, entry.contentRect.width);
      this.#paint();
    }).observe(this.drawing);
    this.drawing.addEventListener("pointermove", (event) => {
      const x = event.clientX - this.drawing.getBoundingClientRect().left;
      this.over = x < LEFT ? null : x;
      this.#read();
    });
    this.drawing.addEventListener("pointerleave", () => {
      this.over = null;
      this.#read();
    });
  }

  /** The points of each line, in the order of the lines. */
  draw(points) {
    this.lines.forEach((line, index) => (line.points = points[index]));
    this.#paint();
  }

  #paint() {
    const all = this.lines.flatMap((line) => line.points);
    this.reach = Math.max(...this.lines.map((line) => reach(line.points, this.seconds)));
    this.end = all.reduce((late, [at]) => Math.max(late, at), 0);
    this.most = roundUp(all.reduce((high, [, value]) => Math.max(high, value), 0));
    mark(this.drawing, "viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.grid.replaceChildren(...this.#axes());
    for (const line of this.lines) {
      const spots = thinned(line.points, MOST_POINTS).map((point) => `${this.#x(point[0])} ${this.#y(point[1])}`);
      mark(line.path, "d", spots.length > 1 ? `M${spots.join("L")}` : null);
    }
    this.#read();
  }

  #axes() {
    const say = this.lines[0].say;
    const marks = [0, 0.5, 1].flatMap((share) => {
      const y = this.#y(this.most * share);
      const text = svg("text", { x: LEFT - 6, y: Number(y) + 3.5, "text-anchor": "end" }, say(this.most * share));
      return [svg("line", { x1: LEFT, x2: this.width, y1: y, y2: y }), text];
    });
    const ago = svg("text", { x: LEFT, y: HEIGHT - 3 }, `${brief(this.reach)} ago`);
    return [...marks, ago, svg("text", { x: this.width, y: HEIGHT - 3, "text-anchor": "end" }, "now")];
  }

  #x(at) {
    return (this.width - ((this.end - at) / this.reach) * (this.width - LEFT)).toFixed(1);
  }

  #y(value) {
    return (HEIGHT - BOTTOM - (value / this.most) * (HEIGHT - BOTTOM - TOP)).toFixed(1);
  }

  /** The numbers under the pointer, or the latest. */
  #read() {
    mark(this.cursor, "visibility", this.over === null ? "hidden" : "visible");
    const at = this.over === null ? this.end : this.end - ((this.width - this.over) / (this.width - LEFT)) * this.reach;
    if (this.over !== null) {
      mark(this.cursor, "x1", this.over);
      mark(this.cursor, "x2", this.over);
    }
    const said = this.lines.map((line) => {
      const value = nearest(line.points, at);
      put(line.value, value === null ? "–" : line.say(value));
      return `${line.name} ${line.value.textContent}`;
    });
    put(this.moment, this.over === null ? "" : clock(new Date(at * 1000)));
    mark(this.drawing, "aria-label", `${this.title}: ${said.join(", ")}`);
  }
}

function nearest(points, at) {
  if (points.length === 0) return null;
  return points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best))[1];
}

/** The next number above that is easy to read: 1, 2, 5, 10, 20 … */
function roundUp(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}
