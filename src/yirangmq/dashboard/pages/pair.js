/* The pair: both nodes, their heartbeats, the last decision with its evidence, the history of switches. */

import { Refused, get } from "../api.js";
import { h, mark, put, replace } from "../dom.js";
import { bytes, count, moment, span } from "../format.js";
import { sheet } from "../sheet.js";

const EVERY_MS = 1000;
const SHOWN = 50;
const GRAVE = ["alarm", "overlap", "took-over", "stood-down"];

const HISTORY = [
  { name: "event", isHead: true, of: (row) => row.event.replace("-", " "), kind: (row) => (GRAVE.includes(row.event) ? "paused" : "") },
  { name: "when", of: (row) => moment(row.at) },
  { name: "term", isNumber: true, of: (row) => (row.term === undefined ? "–" : count(row.term)) },
  { name: "evidence", of: (row) => evidence(row) },
];

export default {
  route: "/pair",
  title: () => "Pair",
  nav: { label: "Pair", order: 35 },
  /** Hidden on a server that is not in a pair. */
  shows: (status) => Boolean(status.pair),
  mount: (view) => new PairPage(view),
};

class PairPage {
  constructor(view) {
    this.view = view;
    this.state = h("span", { class: "badge" });
    this.alone = h("p", { class: "muted", hidden: true });
    this.own = card("This node");
    this.peer = card("The other node");
    this.link = h("dl", { class: "facts" });
    this.why = h("dl", { class: "card-facts evidence" });
    this.history = sheet(HISTORY, "decisions", "History of switches");
    view.root.append(
      h("h1", {}, "Pair ", this.state),
      this.alone,
      h("div", { class: "nodes" }, this.own.node, this.peer.node),
      this.link,
      h("h2", {}, "Last decision and its evidence"),
      this.why,
      h("h2", {}, "History"),
      this.history.node,
    );
    this.#watch();
  }

  async #watch() {
    const { signal, live } = this.view;
    while (!signal.aborted) {
      try {
        const asked = ["pair", `pair/history?limit=${SHOWN}`].map((where) => get(where, { signal }));
        const [found, { history }] = await Promise.all(asked);
        this.#show(found, history);
      } catch (error) {
        if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
        if (error.status === 404) put(this.alone, `${error.message}.`);
        this.alone.hidden = error.status !== 404;
      }
      await new Promise((resolve) => setTimeout(resolve, live.phase === "live" ? EVERY_MS : EVERY_MS * 3));
    }
  }

  #show(found, history) {
    this.alone.hidden = true;
    put(this.state, `${found.role.toLowerCase()}, term ${found.term}${found.role === "ACTIVE" && !found.works ? ", not serving" : ""}`);
    mark(this.state, "class", `badge ${found.works ? "good" : "paused"}`);
    this.own.show(found, ownFacts(found), found.works ? "good" : "");
    const peer = found.peer;
    if (peer === null) this.peer.show({ node: "no heartbeat yet", role: "" }, {}, "bad");
    else this.peer.show(peer, peerFacts(peer), peer.silent ? "bad" : "good");
    showFacts(this.link, linkFacts(found));
    showFacts(this.why, Object.fromEntries(found.evidence));
    this.history.show(history.reverse(), (line) => `${line.at} ${line.event} ${line.term}`);
  }
}

function card(title) {
  const name = h("b", {});
  const role = h("span", { class: "badge" });
  const list = h("dl", { class: "card-facts" });
  const node = h("section", { class: "panel node-card" }, h("h2", {}, title), h("p", {}, name, " ", role), list);
  return {
    node,
    show(found, facts, kind) {
      put(name, found.node);
      put(role, found.role || "–");
      mark(role, "class", `badge ${kind}`);
      showFacts(list, facts);
    },
  };
}

/** Names and values; the nodes stay as long as the names do. */
function showFacts(node, facts) {
  const names = Object.keys(facts);
  if (node.dataset.names !== names.join("|")) {
    node.dataset.names = names.join("|");
    replace(
      node,
      names.map((name) => h("div", {}, h("dt", {}, name), h("dd", {}))),
    );
  }
  Object.values(facts).forEach((text, index) => put(node.children[index].lastChild, text));
}

function ownFacts(found) {
  return {
    status: found.status,
    "active for": found.activeSec ? span(Math.floor(found.activeSec)) : "–",
    "running for": span(Math.floor(found.runningSec)),
    ...loadFacts(found.load),
    "messages on disk": count(Object.values(found.backlog).reduce((sum, one) => sum + one, 0)),
  };
}

function peerFacts(peer) {
  return {
    status: peer.status,
    "last heartbeat": `${span(Math.floor(peer.heardSec))} ago${peer.silent ? ", silent" : ""}`,
    "running for": span(Math.floor(peer.runningSec)),
    ...loadFacts(peer.load),
    "clock difference": Math.abs(peer.clockAheadSec) < 1 ? "below 1 s" : `${peer.clockAheadSec.toFixed(1)} s`,
    addresses: peer.addresses.join(", ") || "–",
  };
}

function loadFacts({ cpu, memory, depth }) {
  return { processor: `${Math.round(cpu * 100)} %`, memory: bytes(memory), backlog: count(depth) };
}

function linkFacts(found) {
  const refused = Object.values(found.heartbeats.refused).reduce((sum, one) => sum + one, 0);
  return {
    ...(found.keysDiffer ? { "pair key": "different from the other node's: no takeover" } : {}),
    "link delay": found.linkDelayMs === null ? "–" : `${found.linkDelayMs} ms`,
    "longest gap": span(found.longestGapSec),
    heartbeats: `${count(found.heartbeats.sent)} sent, ${count(found.heartbeats.heard)} received, ${count(refused)} refused`,
    interval: span(found.intervalSec),
    "silent after": span(found.timeoutSec),
    witness: found.witness,
    "switches in a day": count(found.switches),
  };
}

/** Each step of a decision with its finding. */
function evidence(row) {
  const steps = row.evidence ?? [];
  if (steps.length === 0) return h("span", { class: "muted" }, "–");
  return h(
    "ul",
    { class: "steps" },
    steps.map(([step, found]) => h("li", {}, h("b", {}, step), ` ${found}`)),
  );
}
