/* A chart over time, drawn by uPlot: labelled axes, a legend that turns lines off, a time cursor, a choice by dragging. */

import { h, mark, put, svg } from "./dom.js";
import { clock, moment } from "./format.js";
import uPlot from "./vendor/uPlot.js";

const HEIGHT = 190;
const FONT = "11px Inter, system-ui, sans-serif";
const TICK = 4;
const GAP = 5;
const DAY_SECONDS = 86_400;
const BAD = ["fail", "dead"];
/* These lines are dashed, so that colour is not the only difference. */
const WHOLE = powers([1, 2, 5], 0);
const PARTS = powers([1, 2, 5], -2);
const SPANS = [
  ...[1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18_000, 43_200],
  ...powers([1, 2, 5], 0).map((days) => days * DAY_SECONDS),
];
/* The steps of an axis: of counts, of rates, of seconds. */
const STEPS = { count: WHOLE, rate: PARTS, span: SPANS };

/** `lines`: `[{name, kind, column, format, mean}]`; `format` makes a text of a number. Without a cursor the legend has the latest numbers or,
 * of lines with `mean`, the result of that function of the group. `unit` is the label of the axis; `steps` is "count", "rate" or
 * "span". The charts of a `group` share the cursor and the zoom. */
export class TimeChart {
  constructor(group, { title, unit, steps, lines, rest = "" }) {
    Object.assign(this, { group, title, unit, rest });
    this.lines = lines.map((line) => ({ ...line, isShown: true }));
    this.series = null;
    this.width = 0;
    this.moment = h("span", { class: "chart-moment" });
    this.place = h("div", {
      class: "timechart",
      tabindex: "0",
      role: "group",
      "aria-roledescription": "chart",
      "aria-label": title,
      "aria-describedby": group.help.id,
    });
    const name = h("span", { class: "chart-title" }, title);
    this.node = h("figure", { class: "chart panel" }, h("figcaption", {}, name, this.moment, h("span", { class: "legends" }, this.#legend())), this.place);
    this.probes = new Map();
    this.steps = STEPS[steps];
    this.place.addEventListener("keydown", (event) => group.press(event, this));
    this.observer = new ResizeObserver(([entry]) => this.#fit(Math.floor(entry.contentRect.width)));
    this.observer.observe(this.place);
  }

  #legend() {
    return this.lines.map((line, index) => {
      line.value = h("b", {}, "–");
      if (this.lines.length === 1) return h("span", { class: "legend", "data-kind": line.kind }, line.name, line.value);
      const button = h("button", { type: "button", class: "legend", "data-kind": line.kind, "aria-pressed": "true" });
      button.append(line.name, line.value);
      button.addEventListener("click", () => {
        line.isShown = !line.isShown;
        mark(button, "aria-pressed", String(line.isShown));
        this.plot?.setSeries(index + 1, { show: line.isShown });
      });
      return button;
    });
  }

  /** Replace all numbers; the x-axis shows them between `from` and `until`, in seconds. */
  draw(series, from, until) {
    this.series = series;
    this.data = [series.at, ...this.lines.map((line) => series[line.column])];
    this.seen = { min: from, max: until };
    if (this.plot === undefined) this.#make();
    else {
      this.plot.setData(this.data, false);
      this.plot.setScale("x", this.seen);
    }
    this.read();
  }

  #fit(width) {
    this.width = width;
    if (this.plot === undefined) this.#make();
    else if (width > 0) this.plot.setSize({ width, height: HEIGHT });
  }

  /** Once there are numbers and the width is known. */
  #make() {
    if (!this.width || this.series === null) return;
    this.plot = new uPlot(this.#options(this.width), this.data, this.place);
    this.plot.setScale("x", this.seen);
    this.place.plot = this.plot;
    this.read();
  }

  // -- options of uPlot ------------------------------------------------------------------------------------------

  #options(width) {
    const axis = { stroke: () => this.#colour("--muted"), font: FONT, labelFont: FONT, labelSize: 16, gap: GAP };
    const grid = { stroke: () => this.#colour("--line"), width: 1 };
    const ticks = { stroke: () => this.#colour("--line-strong"), width: 1, size: TICK };
    const [{ format }] = this.lines;
    return {
      width,
      height: HEIGHT,
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { size: 6 },
        drag: { x: true, y: false, setScale: false, dist: 5 },
        sync: { key: this.group.key, scales: ["x", null] },
        bind: { dblclick: () => () => this.group.zoom(null) },
      },
      scales: { x: { time: true }, y: { range: (plot, low, high) => [0, Math.max(this.steps[0], (high ?? 0) * 1.08)] } },
      axes: [
        { ...axis, grid, ticks, size: 28, space: 64, label: "local time", values: (plot, splits, _, __, step) => splits.map((at) => timeLabel(at, step)) },
        {
          ...axis,
          grid,
          ticks,
          space: 28,
          incrs: this.steps,
          label: this.unit,
          values: (plot, splits) => splits.map(format),
          size: (plot, texts) => widest(plot, texts) + TICK + 2 * GAP,
        },
      ],
      series: [
        {},
        ...this.lines.map((line) => ({
          label: line.name || this.title,
          show: line.isShown,
          stroke: () => this.#colour("--c", line.kind),
          width: 1.6,
          dash: BAD.includes(line.kind) && this.lines.length > 1 ? [6, 4] : undefined,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [() => this.read()], setSelect: [(plot) => this.#select(plot)] },
    };
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width < 5) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.group.zoom(range);
  }

  /** A colour of the page, as the canvas understands it: light or dark, as the page is at the moment. */
  #colour(name, kind = "") {
    let probe = this.probes.get(name + kind);
    if (probe === undefined) {
      probe = svg("svg", { class: "probe", "data-kind": kind || null, "aria-hidden": "true" });
      probe.style.color = `var(${name})`;
      this.place.append(probe);
      this.probes.set(name + kind, probe);
    }
    return getComputedStyle(probe).color;
  }

  recolour() {
    this.plot?.redraw(false);
  }

  // -- the cursor ------------------------------------------------------------------------------------------------

  /** Set the cursor to a sample, as the keyboard does. Null takes it away. */
  point(index) {
    if (this.plot === undefined) return;
    const left = index === null ? -10 : this.plot.valToPos(this.series.at[index], "x");
    this.plot.setCursor({ left, top: index === null ? -10 : 1 }, false);
    this.read();
  }

  /** The numbers at the cursor, or the latest, in words. */
  read() {
    if (this.series === null) return;
    const index = this.plot?.cursor.idx ?? null;
    const shown = index ?? this.series.at.length - 1;
    const texts = this.lines.map((line) => {
      const value = (index === null && line.mean ? line.mean(this.group) : this.series[line.column][shown]) ?? null;
      put(line.value, value === null ? "–" : line.format(value));
      return `${line.name} ${line.value.textContent}`.trim();
    });
    const at = index === null ? null : new Date(this.series.at[index] * 1000);
    put(this.moment, at === null ? this.rest : this.group.isLong ? moment(at).slice(5) : clock(at));
    this.words = `${this.title}: ${texts.join(", ")} ${this.unit}`;
    mark(this.place, "aria-label", this.words);
  }

  close() {
    this.observer.disconnect();
    this.plot?.destroy();
  }
}

function widest(plot, texts) {
  const [font] = plot.axes[1].font;
  plot.ctx.font = font;
  const widths = (texts ?? []).map((text) => plot.ctx.measureText(text ?? "").width);
  return Math.ceil(Math.max(0, ...widths) / devicePixelRatio);
}

function timeLabel(at, step) {
  const date = new Date(at * 1000);
  if (step >= DAY_SECONDS || (date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0)) {
    return moment(date).slice(5, 10);
  }
  return step < 60 ? clock(date) : clock(date).slice(0, 5);
}

function powers(digits, from) {
  const found = [];
  for (let power = from; power < 14; power += 1) for (const digit of digits) found.push(digit * 10 ** power);
  return found;
}
