/* Consumers that report, their pause, resume and drain, and the connections. */

import { Refused, get, path, post } from "../api.js";
import { complain, note } from "../dialogs.js";
import { Rows, h, mark, put, replace, walkable } from "../dom.js";
import { bytes, count, moment, span } from "../format.js";
import { link } from "../router.js";

const EVERY_MS = 1000;
const WISHES = { pause: "lease nothing more", resume: "lease messages again", drain: "finish the messages in process, then stop" };
const COLUMNS = ["state", "queues", "in process", "done", "failed", "lost", "last report", "running since"];
const NUMBERS = ["in process", "done", "failed", "lost"];
const CONNECTION_COLUMNS = ["client", "from", "connected", "subscriptions", "waiting", "buffered"];

export default {
  route: "/consumers",
  title: () => "Consumers",
  nav: { label: "Consumers", order: 20 },
  mount: (view) => new ConsumersPage(view),
};

class ConsumersPage {
  constructor(view) {
    this.view = view;
    this.body = h("tbody", {});
    this.rows = new Rows(this.body, (card) => this.#row(card));
    this.table = h(
      "table",
      { class: "cards consumers", "aria-label": "Consumers", hidden: true },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "consumer"),
          COLUMNS.map((name) => h("th", { scope: "col", class: NUMBERS.includes(name) ? "number" : "" }, name)),
          h("th", {}, h("span", { class: "quiet" }, "actions")),
        ),
      ),
      this.body,
    );
    this.empty = h(
      "div",
      { class: "empty", hidden: true },
      h("h3", {}, "No consumer reported within the last hour"),
      h("p", {}, "A consumer process reports by itself:"),
      h("pre", {}, "yirangmq consume --queue mail --handler letters:send"),
    );
    this.lines = h("div", { class: "connections" });
    view.root.append(h("h1", {}, "Consumers"), this.table, this.empty, h("h2", {}, "Connections"), this.lines);
    walkable(this.body, "button[data-wish]");
    this.#watch();
  }

  async #watch() {
    const { signal, live } = this.view;
    while (!signal.aborted) {
      try {
        const { consumers } = await get("consumers", { signal });
        this.#show(consumers);
        await this.#askConnections();
      } catch (error) {
        if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, live.phase === "live" ? EVERY_MS : EVERY_MS * 3));
    }
  }

  #show(consumers) {
    this.table.hidden = consumers.length === 0;
    this.empty.hidden = consumers.length > 0;
    this.rows.show(consumers, (card) => card.consumerId);
  }

  #row(first) {
    const id = first.consumerId;
    const state = h("span", { class: "badge" });
    const queues = h("span", {});
    const where = h("span", { class: "muted" });
    const numbers = NUMBERS.map((name) => h("td", { class: "number", "data-label": name }));
    const beat = h("td", { class: "nowrap", "data-label": "last report" });
    const since = h("td", { class: "nowrap", "data-label": "running since" });
    const buttons = Object.entries(WISHES).map(([wish, about]) =>
      h(
        "button",
        {
          type: "button",
          class: "small",
          "data-wish": wish,
          title: `Ask it to ${about}`,
          onclick: () => this.#wish(id, wish),
        },
        `${wish[0].toUpperCase()}${wish.slice(1)}`,
      ),
    );
    const node = h(
      "tr",
      {},
      h("th", { scope: "row" }, h("b", {}, id), where),
      h("td", { "data-label": "state" }, state),
      h("td", { "data-label": "queues" }, queues),
      numbers,
      beat,
      since,
      h("td", { class: "whole" }, h("span", { class: "buttons" }, buttons)),
    );
    const update = (card) => {
      put(state, card.wish === null ? card.state : `${card.state}, asked to ${card.wish}`);
      mark(
        state,
        "class",
        `badge ${{ running: "good", silent: "bad", paused: "paused", draining: "paused" }[card.state] ?? ""}`,
      );
      put(where, card.host ? `${card.host}${card.pid ? `, process ${card.pid}` : ""}` : "");
      showQueues(queues, card.queues);
      [card.inWork, card.done, card.failed, card.lost].forEach((value, index) => {
        put(numbers[index], count(value));
        mark(numbers[index], "data-zero", value === 0);
      });
      put(beat, card.silentSec < 2 ? "now" : `${span(Math.floor(card.silentSec))} ago`);
      put(since, Date.parse(card.startedAt) > 0 ? moment(card.startedAt) : "–");
      for (const button of buttons) button.disabled = cannot(card, button.dataset.wish);
    };
    return { node, update };
  }

  async #wish(id, wish) {
    try {
      await post(path`consumers/${id}/${wish}`);
      note(`${id} is asked to ${WISHES[wish]}.`);
      this.#show((await get("consumers", { signal: this.view.signal })).consumers);
    } catch (error) {
      complain(error);
    }
  }

  // -- connections -----------------------------------------------------------------------------------------------

  async #askConnections() {
    try {
      this.#showConnections((await get("connections", { signal: this.view.signal })).connections);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 403) throw error;
      replace(this.lines, h("p", { class: "muted" }, "This token does not allow the list of connections."));
    }
  }

  #showConnections(found) {
    if (this.connections === undefined) {
      const head = CONNECTION_COLUMNS;
      const body = h("tbody", {});
      this.connections = new Rows(body, () => connectionRow());
      replace(
        this.lines,
        h(
          "table",
          { class: "cards", "aria-label": "Connections" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              head.map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          body,
        ),
      );
    }
    const named = found.map((one, index) => ({ ...one, key: `${one.peer} ${one.client} ${index}` }));
    this.connections.show(named, (one) => one.key);
  }
}

function cannot(card, wish) {
  const states = { pause: "paused", resume: "running", drain: "draining" };
  return card.wish === wish || (card.wish === null && card.state === states[wish]);
}

function showQueues(node, queues) {
  if (node.dataset.queues === queues.join()) return;
  node.dataset.queues = queues.join();
  replace(
    node,
    queues.map((queue, index) => [index ? ", " : "", h("a", { href: link("queues", queue) }, queue)]),
  );
}

function connectionRow() {
  const cells = CONNECTION_COLUMNS.map((label) =>
    h("td", { "data-label": label }),
  );
  return {
    node: h("tr", {}, cells),
    update(one) {
      const subscribed = (one.subscriptions ?? []).map((each) => `${each.queue} (${each.consumerId})`).join(", ");
      const texts = [
        one.client || "–",
        one.peer,
        span(Math.floor(one.connectedSec)),
        subscribed || "–",
        one.waiting ?? "–",
        bytes(one.bytesHeld ?? 0),
      ];
      texts.forEach((text, index) => put(cells[index], text));
    },
  };
}
