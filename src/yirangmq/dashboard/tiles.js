/* Totals of all queues, each with a line of the last minutes. */

import { Sparkline } from "./charts.js";
import { h, put } from "./dom.js";
import { rate, short } from "./format.js";
import { waiting } from "./history.js";

const COUNTED = [
  { name: "Backlog", kind: "waiting", of: waiting },
  { name: "Leased", kind: "leased", of: (all) => all.leased },
  { name: "Dead letters", kind: "dead", of: (all) => all.dead },
];
const RATED = [
  { name: "In/s", kind: "in", metric: "published" },
  { name: "Out/s", kind: "out", metric: "acked" },
  { name: "Failed/s", kind: "fail", metric: "failed" },
];

/** The tiles: `{node, show(live)}` each. */
export function tiles(seconds) {
  return [...COUNTED.map((one) => counted(one, seconds)), ...RATED.map((one) => rated(one, seconds))];
}

function counted({ name, kind, of }, seconds) {
  const { node, show } = tile(name, kind, seconds);
  return {
    node,
    show({ status, history }) {
      show(short(of(status.all)), history.points(null, kind, seconds));
    },
  };
}

function rated({ name, kind, metric }, seconds) {
  const { node, show } = tile(name, kind, seconds);
  return { node, show: (live) => show(rate(live.rate(null, metric)), live.history.rates(null, metric, seconds)) };
}

function tile(name, kind, seconds) {
  const value = h("b", {}, "–");
  const line = new Sparkline(kind, seconds);
  const title = h("span", { class: "tile-name" }, name);
  return {
    node: h("div", { class: "tile panel", "data-kind": kind }, title, value, line.node),
    show(text, points) {
      put(value, text);
      line.draw(points);
    },
  };
}
