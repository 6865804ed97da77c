/* Topics: their log, the subscribers and their lag, the bridges to queues. */

import { Refused, del, get, path, withQuery } from "../api.js";
import { complain, confirm, note } from "../dialogs.js";
import { h, put, replace, walkable } from "../dom.js";
import { bytes, count, moment, plural, rate } from "../format.js";
import { link } from "../router.js";
import { sheet } from "../sheet.js";

const EVERY_MS = 1000;
const GOOD = ["online", "running"];
const BAD = ["error", "stopped"];

const TOPICS = [
  { name: "topic", isHead: true, of: (row) => h("a", { class: "topic-name", href: link("topics", row.topic) }, row.topic) },
  { name: "records/s", isNumber: true, of: (row) => rate(row.publishedPerSec) },
  { name: "last in topic", isNumber: true, of: (row) => count(row.topicSequence) },
  { name: "last in log", isNumber: true, of: (row) => count(row.sequence) },
  { name: "kept", isNumber: true, of: (row) => count(row.records) },
  { name: "size", isNumber: true, of: (row) => bytes(row.bytes) },
  { name: "latest", of: (row) => moment(row.at) },
];
const SUBSCRIBERS = [
  { name: "subscriber", isHead: true, of: (row) => row.name || `number ${row.subscriber}` },
  { name: "state", of: (row) => row.state.replace("_", " "), kind: (row) => badge(row.state) },
  { name: "topics", of: (row) => row.filter || "*" },
  { name: "sequence", isNumber: true, of: (row) => count(row.sequence) },
  { name: "confirmed", isNumber: true, of: (row) => count(row.confirmed) },
  { name: "lag", isNumber: true, of: (row) => count(row.lag) },
  { name: "recoveries", isNumber: true, of: (row) => count(row.recoveries) },
  { name: "connection", isLong: true, of: (row) => row.peer ?? `offline since ${moment(row.heardAt)}` },
  { name: "", of: (row) => (row.state === "offline" ? forgetButton(row) : "") },
];
const BRIDGES = [
  { name: "bridge", isHead: true, of: (row) => row.name },
  { name: "state", of: (row) => row.state, kind: (row) => badge(row.state) },
  { name: "topics", of: (row) => row.topics.join(", ") || "*" },
  { name: "queue", of: (row) => h("a", { href: link("queues", row.queue) }, row.queue) },
  { name: "sequence", isNumber: true, of: (row) => count(row.sequence) },
  { name: "lag", isNumber: true, of: (row) => count(row.lag) },
  { name: "delivered", isNumber: true, of: (row) => count(row.delivered) },
  { name: "refused", isNumber: true, of: (row) => count(row.refused) },
  { name: "reason", isLong: true, of: (row) => row.reason || "–" },
];

export default {
  route: "/topics",
  title: () => "Topics",
  nav: { label: "Topics", order: 15 },
  needs: "/v1/topics",
  mount: (view) => new TopicsPage(view),
};

class TopicsPage {
  constructor(view) {
    this.view = view;
    this.log = h("dl", { class: "facts log-facts" });
    this.state = h("span", { class: "badge" });
    this.topics = sheet(TOPICS, "topics", "Topics");
    this.subscribers = sheet(SUBSCRIBERS, "subscribers", "Subscribers");
    this.bridges = sheet(BRIDGES, "bridges", "Bridges");
    const url = new URL("v1/topics/readings/records", document.baseURI);
    const first = `yirangmq topic publish readings '{"temp": 36.1}'\ncurl -s ${url} --json '{"temp": 36.1}'`;
    this.empty = none("No topics yet", "A topic is created with its first record. From a shell:", first);
    this.alone = h("p", { class: "muted" }, "No subscribers.");
    this.unbridged = h("p", { class: "muted" }, "No bridges. ", h("code", {}, "yirangmq bridge add"), " adds one.");
    view.root.append(
      h("h1", {}, "Topics ", this.state),
      this.log,
      this.topics.node,
      this.empty,
      h("h2", {}, "Subscribers"),
      this.subscribers.node,
      this.alone,
      h("h2", {}, "Bridges to queues"),
      this.bridges.node,
      this.unbridged,
    );
    walkable(this.topics.body, "a.topic-name");
    this.#watch();
  }

  async #watch() {
    const { signal, live } = this.view;
    while (!signal.aborted) {
      try {
        const asked = ["topics", "subscribers", "bridges"].map((where) => get(where, { signal }));
        const [found, { subscribers }, { bridges }] = await Promise.all(asked);
        this.#show(found, subscribers, bridges);
      } catch (error) {
        if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
        if (error.status === 404) put(this.state, error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, live.phase === "live" ? EVERY_MS : EVERY_MS * 3));
    }
  }

  #show(found, subscribers, bridges) {
    put(this.state, found.state);
    this.state.className = `badge ${badge(found.state)}`;
    facts(this.log, found);
    this.topics.show(found.topics, (row) => row.topic);
    this.subscribers.show(subscribers, (row) => row.subscriber);
    this.bridges.show(bridges, (row) => row.name);
    this.empty.hidden = found.topics.length > 0;
    this.alone.hidden = subscribers.length > 0;
    this.unbridged.hidden = bridges.length > 0;
  }
}

function forgetButton(row) {
  const label = `Forget ${row.name}`;
  return h("button", { type: "button", class: "small", "aria-label": label, onclick: () => forget(row) }, "Forget");
}

/** Forget a durable subscriber, if a dry run succeeds. */
async function forget(row) {
  const where = path`cursors/${row.name}`;
  try {
    await del(withQuery(where, { dryRun: true }));
    const text = `It has confirmed sequence ${count(row.confirmed)}; its lag is ${plural(row.lag, "record")}. Its cursor is deleted, and the log keeps no records for it.`;
    if (!(await confirm(`Forget ${row.name}?`, { text, yes: "Forget", isDanger: true }))) return;
    await del(where);
    note(`${row.name} is forgotten.`);
  } catch (error) {
    complain(error);
  }
}

function badge(state) {
  if (GOOD.includes(state)) return "good";
  return BAD.includes(state) ? "bad" : "paused";
}

function facts(node, { first, last, epoch, gaps }) {
  const found = {
    "first sequence": count(first),
    "last sequence": count(last),
    epoch: epoch ?? "none: no record yet",
    gaps: gaps.map(([low, high]) => `${count(low)} to ${count(high)}`).join(", ") || "none",
  };
  if (node.children.length === 0) {
    replace(
      node,
      Object.keys(found).map((name) => h("div", {}, h("dt", {}, name), h("dd", {}))),
    );
  }
  Object.values(found).forEach((text, index) => put(node.children[index].lastChild, text));
}

function none(title, text, command) {
  return h("div", { class: "empty", hidden: true }, h("h3", {}, title), h("p", {}, text), h("pre", {}, command));
}
