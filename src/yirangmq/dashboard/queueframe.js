/* The head of every page of a queue: its name, its counts, its buttons and its tabs. */

import { Refused, del, get, path, post } from "./api.js";
import { consumerBadge, consumersLine, lacksConsumer } from "./consumersof.js";
import { complain, confirm, note } from "./dialogs.js";
import { h, mark, put, replace } from "./dom.js";
import { count, plural } from "./format.js";
import { purge } from "./purge.js";
import { link } from "./router.js";
import { KEPT, STATES } from "./states.js";

const CONSUMERS_MS = 3000;
const ALWAYS = ["delayed", "ready", "leased", "dead", "parked", "done"];

/** Draw it into the view; `body` is the place below it. `onRow(row)` is called with the queue after every change,
 * `chosen()` returns the state that the page shows. */
export class QueueFrame {
  constructor(view, page, { onRow = () => {}, chosen = () => null } = {}) {
    this.view = view;
    this.chosen = chosen;
    this.queue = view.values.queue;
    this.onRow = onRow;
    this.row = null;
    this.isAsking = false;
    this.isGoing = false;
    this.badges = h("span", { class: "badges" });
    this.pause = h("button", { type: "button", hidden: true, onclick: () => this.#pause() });
    this.purge = h(
      "button",
      { type: "button", hidden: true, onclick: () => purge(this.view, this.queue, this.row.counts) },
      "Purge…",
    );
    this.remove = h(
      "button",
      { type: "button", class: "plain-danger", hidden: true, onclick: () => this.#delete() },
      "Delete queue…",
    );
    this.consumers = consumersLine();
    this.reported = [];
    this.reportedAt = -Infinity;
    this.states = h("div", { class: "states" });
    this.missing = h("div", { class: "empty", hidden: true });
    this.body = h("div", { class: "tab-body" });
    view.root.append(
      h("nav", { class: "crumbs", "aria-label": "Back" }, h("a", { href: "#/" }, "‹ Overview")),
      h(
        "div",
        { class: "bar-line queue-head" },
        h("h1", {}, this.queue, this.badges),
        h(
          "span",
          { class: "buttons" },
          page.route.endsWith("/publish")
            ? null
            : h("a", { class: "button primary", href: link("queues", this.queue, "publish") }, "Publish…"),
          this.pause,
          this.purge,
          this.remove,
        ),
      ),
      this.consumers.node,
      this.states,
      this.#tabs(page),
      this.missing,
      this.body,
    );
    view.live.need([this.queue, this.queue.replace(/-dlq$/, "")], view.signal);
    view.live.listen(() => this.#ask(), view.signal);
  }

  #tabs(page) {
    const tabs = this.view.pages.filter((other) => other.tab).sort((one, other) => one.tab.order - other.tab.order);
    this.tabCounts = new Map();
    return h(
      "nav",
      { class: "tabs", "aria-label": "Pages of this queue" },
      tabs.map((other) => {
        const number = h("span", { class: "tab-count" });
        this.tabCounts.set(other.tab.counts ?? "", number);
        const where = `#${other.route.replace("{queue}", encodeURIComponent(this.queue))}`;
        return h("a", { href: where, "aria-current": other === page ? "page" : null }, other.tab.label, number);
      }),
    );
  }

  async #ask() {
    if (this.isAsking || this.isGoing || !this.view.live.knows(this.queue)) return;
    this.isAsking = true;
    try {
      const isThere = this.view.live.row(this.queue) !== null;
      this.row = isThere ? await get(path`queues/${this.queue}`, { signal: this.view.signal }) : null;
      if (isThere) await this.#askConsumers();
    } catch (error) {
      if (error instanceof Refused && error.status === 404) this.row = null;
      else return;
    } finally {
      this.isAsking = false;
    }
    this.#show();
    this.onRow(this.row);
  }

  /** The consumers that report; a token may not allow this list. */
  async #askConsumers() {
    if (performance.now() - this.reportedAt < CONSUMERS_MS) return;
    this.reportedAt = performance.now();
    try {
      const { consumers } = await get("consumers", { signal: this.view.signal });
      this.reported = consumers.filter((one) => one.queues.includes(this.queue) && one.state !== "silent");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }

  /** Another state is shown. */
  turn() {
    if (this.row !== null) this.#show();
  }

  #show() {
    const { row } = this;
    const isThere = row !== null;
    this.pause.hidden = this.purge.hidden = this.remove.hidden = this.states.hidden = !isThere;
    this.#showMissing(isThere);
    if (!isThere) {
      this.consumers.node.hidden = true;
      return;
    }
    put(this.pause, row.paused ? "Resume" : "Pause");
    mark(this.pause, "class", row.paused ? "primary" : null);
    this.#showStates(row.counts);
    this.consumers.show(row, this.reported);
    put(this.tabCounts.get("dead") ?? h("i"), row.counts.dead ? count(row.counts.dead) : "");
    const isLacking = lacksConsumer(row);
    const wanted = `${row.paused}${row.policyError}${isLacking}`;
    if (this.badges.dataset.wanted === wanted) return;
    this.badges.dataset.wanted = wanted;
    replace(
      this.badges,
      row.paused ? h("span", { class: "badge paused" }, "paused") : null,
      row.policyError ? h("span", { class: "badge bad", title: row.policyError }, "broken policy") : null,
      isLacking ? consumerBadge() : null,
    );
  }

  #showStates(counts) {
    const shown = KEPT.filter((state) => ALWAYS.includes(state) || counts[state] > 0);
    if (this.states.dataset.shown !== shown.join()) {
      this.states.dataset.shown = shown.join();
      replace(
        this.states,
        shown.map((state) => {
          return h(
            "a",
            {
              class: "state-box panel",
              "data-state": state,
              href: stateLink(this.queue, state),
              title: STATES[state],
            },
            h("span", {}, state),
            h("b", {}),
          );
        }),
      );
    }
    shown.forEach((state, index) => {
      put(this.states.children[index].lastChild, count(counts[state]));
      mark(this.states.children[index], "data-zero", counts[state] === 0);
      mark(this.states.children[index], "aria-current", state === this.chosen() ? "true" : null);
    });
  }

  #showMissing(isThere) {
    this.missing.hidden = isThere;
    if (isThere || this.missing.childElementCount > 0) return;
    const sources = this.view.live.status.queues.filter((row) => row.dlqQueue === this.queue);
    if (sources.length > 0) {
      replace(
        this.missing,
        h(
          "p",
          {},
          "This is the dead-letter queue of ",
          sources.map((row, index) => [
            index ? ", " : "",
            h("a", { href: link("queues", row.queue, "dead-letters") }, row.queue),
          ]),
          ".",
        ),
      );
      return;
    }
    replace(
      this.missing,
      h("h3", {}, "This queue does not exist"),
      h(
        "p",
        {},
        "It is created when a message is ",
        h("a", { href: link("queues", this.queue, "publish") }, "published to it"),
        ".",
      ),
    );
  }

  async #pause() {
    const verb = this.row.paused ? "resume" : "pause";
    try {
      await post(path`queues/${this.queue}/${verb}`);
      note(
        verb === "pause"
          ? `${this.queue} is paused: no message is leased. Publishing continues.`
          : `${this.queue} is resumed.`,
      );
      this.view.live.poke();
    } catch (error) {
      complain(error);
    }
  }

  async #delete() {
    const { counts } = this.row;
    const all = KEPT.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
    const text = `The ${plural(all, "message")} of ${this.queue} and its policy are deleted. This cannot be undone.`;
    if (!(await confirm("Delete this queue?", { text, yes: "Delete", typed: this.queue, isDanger: true }))) return;
    this.isGoing = true;
    try {
      const { deleted } = await del(path`queues/${this.queue}`, { patience: 0 });
      note(`${this.queue} and ${plural(deleted, "message")} are deleted.`);
      location.hash = "#/";
      this.view.live.poke();
    } catch (error) {
      this.isGoing = false;
      complain(error);
    }
  }
}

/** Where the messages of a state are shown. */
export function stateLink(queue, state) {
  if (state === "dead") return link("queues", queue, "dead-letters");
  if (state === "parked") return `${link("queues", queue, "dead-letters")}?state=parked`;
  return `${link("queues", queue)}${state === "ready" ? "" : `?state=${state}`}`;
}
