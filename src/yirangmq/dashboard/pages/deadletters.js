/* Dead letters of one queue: reasons, growth by day, filter, redrive, quarantine, purge. */

import { get, path, withQuery } from "../api.js";
import { Bars, Days } from "../charts.js";
import { complain } from "../dialogs.js";
import { h, mark, put } from "../dom.js";
import { FilterBox } from "../filterbox.js";
import { count, moment, plural, relative } from "../format.js";
import { showMessage, turnMessage } from "../message.js";
import { COLUMNS_OF, MessageList, PER_PAGE } from "../messagelist.js";
import { MOVES, move } from "../moving.js";
import { QueueFrame } from "../queueframe.js";
import { REASONS } from "../states.js";

const EXAMPLE = "reasonCode=TIMEOUT and attempt>=3";
const KINDS = { dead: "dead", parked: "parked", all: "both" };
const LEAST_BETWEEN_MS = 2000;

const page = {
  route: "/queues/{queue}/dead-letters",
  title: ({ queue }) => `Dead letters of ${queue}`,
  tab: { label: "Dead letters", order: 20, counts: "dead" },
  mount: (view) => new DeadLetters(view),
};
export default page;

class DeadLetters {
  constructor(view) {
    this.view = view;
    this.queue = view.values.queue;
    this.filter = view.query.get("filter") ?? "";
    this.state = view.query.get("state") in KINDS ? view.query.get("state") : "dead";
    this.seen = null;
    this.askedAt = 0;
    this.bars = new Bars((reason) => this.box.set(`reasonCode=${reason}`));
    this.days = new Days();
    this.summary = h("p", { class: "muted" });
    this.charts = h(
      "div",
      { class: "letters-charts" },
      h("section", { class: "panel chart" }, h("h2", {}, "Reasons"), this.bars.node),
      h("section", { class: "panel chart" }, h("h2", {}, "Failed by day (UTC)"), this.days.node),
    );
    this.box = new FilterBox(this.filter, EXAMPLE, (text) => this.choose(text, this.state));
    this.kinds = h(
      "span",
      { class: "choices", role: "group", "aria-label": "State" },
      Object.entries(KINDS).map(([kind, label]) =>
        h(
          "button",
          {
            type: "button",
            class: "small",
            "data-kind-of": kind,
            onclick: () => this.choose(this.filter, kind),
          },
          label,
        ),
      ),
    );
    this.moves = Object.entries(MOVES).map(([verb, { name, isDanger }]) => {
      const button = h("button", {
        type: "button",
        class: verb === "redrive" ? "primary" : isDanger ? "plain-danger" : "",
        onclick: () => this.#move(verb),
      });
      return { verb, name, button };
    });
    this.list = new MessageList(view, {
      load: (cursor) => this.#load(cursor),
      columns: COLUMNS_OF.dead,
      empty: () => this.#nothing(),
      canChoose: true,
      changed: () => this.#nameMoves(),
    });
    this.frame = new QueueFrame(view, page, { onRow: (row) => this.#onRow(row), chosen: () => this.state });
    this.frame.body.append(
      this.summary,
      this.charts,
      this.box.node,
      h(
        "div",
        { class: "bar-line" },
        this.kinds,
        h(
          "span",
          { class: "buttons moves" },
          this.moves.map(({ button }) => button),
        ),
      ),
      this.list.node,
    );
    this.#markKind();
    this.#nameMoves();
    this.list.refresh();
    const wanted = view.query.get("message");
    if (wanted !== null) showMessage(view, this.queue, wanted, () => this.#again());
  }

  choose(filter, state) {
    this.filter = filter;
    this.state = state;
    this.view.setQuery({ filter, state: state === "dead" ? "" : state });
    this.#markKind();
    this.frame.turn();
    this.list.begin();
  }

  /** Another query of the same page. */
  turn(query) {
    const state = query.get("state") in KINDS ? query.get("state") : "dead";
    this.box.input.value = query.get("filter") ?? "";
    this.choose(this.box.value, state);
    turnMessage(this.view, this.queue, query, () => this.#again());
  }

  #markKind() {
    for (const button of this.kinds.children)
      mark(button, "aria-pressed", String(button.dataset.kindOf === this.state));
  }

  #nameMoves() {
    const chosen = this.list?.chosen.size ?? 0;
    const what = chosen > 0 ? `${count(chosen)} chosen` : this.filter ? "all that match" : "all";
    for (const { name, button } of this.moves) put(button, `${name} ${what}…`);
  }

  // -- the numbers ----------------------------------------------------------------------------------------------

  #onRow(row) {
    const seen = row === null ? "" : `${row.counts.dead} ${row.counts.parked} ${row.totals.redriven}`;
    if (seen === this.seen || Date.now() - this.askedAt < LEAST_BETWEEN_MS) return;
    const isFirst = this.seen === null;
    this.seen = seen;
    this.askedAt = Date.now();
    this.#stats();
    if (!isFirst) this.list.refresh();
  }

  #again() {
    this.seen = "";
    this.askedAt = 0;
    this.view.live.poke();
    return this.list.refresh();
  }

  async #stats() {
    try {
      this.#show(await get(path`queues/${this.queue}/dead-letters/stats`, { signal: this.view.signal, patience: 0 }));
    } catch (error) {
      if (!error.isLost) complain(error);
    }
  }

  #show(stats) {
    const now = this.view.live.now();
    this.charts.hidden = stats.total === 0;
    const ages =
      stats.oldest === null
        ? ""
        : ` The oldest failed ${relative(stats.oldest, now)}, the latest ${relative(stats.newest, now)}.`;
    const parked = stats.parked > 0 ? ` ${count(stats.parked)} parked.` : "";
    const names = stats.sources.filter((source) => source !== this.queue);
    const from = names.length > 0 ? ` From ${names.join(", ")}.` : "";
    put(this.summary, `${plural(stats.total, "dead letter")}.${ages}${parked}${from}`);
    mark(this.summary, "title", stats.oldest === null ? null : `${moment(stats.oldest)} – ${moment(stats.newest)}`);
    this.bars.draw(Object.entries(stats.byReason).map(([reason, total]) => [reason, total, REASONS[reason] ?? ""]));
    this.days.draw(stats.byDay, new Date(now).toISOString().slice(0, 10));
  }

  async #load(cursor) {
    const query = { filter: this.filter, state: this.state, limit: PER_PAGE, cursor };
    try {
      const found = await get(withQuery(path`queues/${this.queue}/dead-letters`, query), {
        signal: this.view.signal,
      });
      this.box.good();
      return found;
    } catch (error) {
      if (error.code !== "bad_filter") throw error;
      this.box.blame(error.message);
      return null;
    }
  }

  #nothing() {
    if (this.filter) return h("p", {}, "No dead letter matches the filter.");
    return this.state === "parked"
      ? h("p", {}, "No parked messages.")
      : [
          h("h3", {}, "No dead letters"),
          h("p", {}, "A message becomes a dead letter when it fails more often than the policy allows."),
        ];
  }

  // -- moving ----------------------------------------------------------------------------------------------------

  async #move(verb) {
    const chosen = [...this.list.chosen];
    const filter = this.box.value;
    const which =
      chosen.length > 0 ? { ids: chosen } : filter ? { filter, state: this.state } : { all: true, state: this.state };
    try {
      if (await move(this.view, this.queue, verb, which)) {
        this.list.chosen.clear();
        this.#nameMoves();
        await this.#again();
      }
    } catch (error) {
      this.box.blame(error.message);
    }
  }
}
