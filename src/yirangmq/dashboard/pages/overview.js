/* Every queue: its backlog and the age of its next message, its states, rates and consumers. */

import { Refused, get, withQuery } from "../api.js";
import { ChartGroup, DEPTH, RATES } from "../chartgroup.js";
import { Sparkline } from "../charts.js";
import { consumerBadge, lackingLine, lacksConsumer } from "../consumersof.js";
import { Rows, h, mark, put, replace, walkable } from "../dom.js";
import { count, rate, short, span } from "../format.js";
import { waiting } from "../history.js";
import { stateLink } from "../queueframe.js";
import { link } from "../router.js";
import { facts, health } from "../serverfacts.js";
import { KEPT, STATES } from "../states.js";
import { tiles } from "../tiles.js";

const SECONDS = 600;
const PER_PAGE = 100;
const ALWAYS = ["delayed", "ready", "leased", "dead", "done"];
/* States that always have a column. */
const SORTED = { backlog: "backlog", in: "published", out: "acked", fail: "failed" };
/* Columns by which the server sorts under another name. */
const RATED = { in: "published", out: "acked", fail: "failed" };

export default {
  route: "/",
  title: () => "Overview",
  nav: { label: "Overview", order: 10 },
  mount: (view) => new Overview(view),
};

class Overview {
  constructor(view) {
    this.view = view;
    this.sort = view.query.get("sort") ?? "queue";
    this.find = view.query.get("find") ?? "";
    this.page = 0;
    this.cursors = [""];
    /* Cursors of the pages up to the current one, when the server pages. */
    this.isAsking = false;
    this.isOther = false;
    this.order = [];
    this.tiles = tiles(SECONDS);
    this.charts = new ChartGroup(view, null, [RATES, DEPTH]);
    this.lacking = lackingLine();
    this.facts = facts();
    this.columns = [];
    this.head = h("tr", {});
    this.body = h("tbody", {});
    this.rows = new Rows(this.body, (row) => this.makeRow(row));
    this.empty = h("div", { class: "empty", hidden: true });
    this.pager = h("div", { class: "pager", hidden: true });
    this.build();
    walkable(this.body, "a.queue-name");
    view.live.listen(() => this.show(), view.signal);
  }

  build() {
    const search = h("input", {
      type: "search",
      value: this.find,
      placeholder: "Find a queue",
      "aria-label": "Find a queue",
      "data-search": true,
    });
    search.addEventListener("input", () => {
      this.find = search.value.trim();
      this.view.setQuery({ find: this.find });
      this.begin();
    });
    const hint = h("kbd", { "aria-hidden": "true" }, "/");
    this.total = h("span", { class: "muted" });
    this.table = h("table", { class: "queues", "aria-label": "Queues" }, h("thead", {}, this.head), this.body);
    this.view.root.append(
      h("h1", { class: "quiet" }, "Overview"),
      health(this.view.signal),
      this.lacking.node,
      h(
        "div",
        { class: "tiles" },
        this.tiles.map((tile) => tile.node),
      ),
      this.charts.node,
      h(
        "div",
        { class: "bar-line" },
        h("h2", {}, "Queues"),
        this.total,
        h("span", { class: "search" }, search, hint),
        h("a", { class: "button primary", href: "#/publish" }, "Publish"),
      ),
      this.table,
      this.empty,
      this.pager,
      this.facts.node,
    );
  }

  /** Show other queues, or another order, from the first page. */
  begin() {
    this.order = [];
    this.page = 0;
    this.cursors = [""];
    this.isOther = true;
    this.show();
  }

  // -- new numbers ---------------------------------------------------------------------------------------------

  show() {
    const { live } = this.view;
    for (const tile of this.tiles) tile.show(live);
    this.facts.show(live.status);
    this.charts.show();
    if (live.isLarge) {
      this.showLarge();
      return;
    }
    this.drawHead(live.status.queues);
    this.lacking.show(live.status.queues);
    const found = this.chosen(live.status.queues);
    const first = this.page * PER_PAGE;
    this.rows.show(found.slice(first, first + PER_PAGE), (row) => row.queue);
    put(
      this.total,
      found.length === live.status.queues.length ? "" : `${count(found.length)} of ${count(live.status.queues.length)}`,
    );
    this.showEmpty(live.status.queues.length, found.length);
    this.showPager(found.length);
  }

  /** With many queues the server searches, sorts and sends one page. */
  async showLarge() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      do {
        this.isOther = false;
        const cursor = this.cursors[this.page];
        const query = { limit: PER_PAGE, cursor, find: this.find, sort: this.serverSort() };
        const found = await get(withQuery("queues", query), { signal: this.view.signal });
        if (!this.isOther) this.drawLarge(found);
      } while (this.isOther);
    } catch (error) {
      if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
    } finally {
      this.isAsking = false;
    }
  }

  serverSort() {
    const key = this.sort.replace(/^-/, "");
    if (key === "queue" || key === "age" || !(key in SORTED || ALWAYS.includes(key))) return "queue";
    return `${this.sort.startsWith("-") ? "-" : ""}${SORTED[key] ?? key}`;
  }

  drawLarge({ queues, cursor, all }) {
    this.drawHead(queues);
    this.lacking.show(queues);
    this.rows.show(queues, (row) => row.queue);
    this.cursors[this.page + 1] = cursor;
    put(this.total, `${count(all.queues)} in all`);
    this.showEmpty(all.queues, queues.length);
    this.pager.hidden = this.page === 0 && cursor === "";
    const first = this.page * PER_PAGE;
    const shown = `${count(first + 1)}–${count(first + queues.length)}`;
    const state = `large ${this.page} ${shown} ${cursor} ${all.queues}`;
    if (this.pager.hidden || this.pager.dataset.state === state) return;
    this.pager.dataset.state = state;
    this.drawPager(this.find ? shown : `${shown} of ${count(all.queues)}`, cursor === "");
  }

  /** The queues that match the search, sorted. While the pointer or the focus is on a row, the order stays. */
  chosen(queues) {
    const wanted = this.find.toLowerCase();
    const found = queues.filter((row) => row.queue.toLowerCase().includes(wanted));
    const places = new Map(this.order.map((name, place) => [name, place]));
    const isHeld = this.body.matches(":hover, :focus-within") && found.every((row) => places.has(row.queue));
    if (isHeld) found.sort((one, other) => places.get(one.queue) - places.get(other.queue));
    else {
      const key = this.sort.replace(/^-/, "");
      const turn = this.sort.startsWith("-") ? -1 : 1;
      const worth = (row) => this.worth(row, key);
      found.sort((one, other) => {
        const [a, b] = [worth(one), worth(other)];
        return (a < b ? -1 : a > b ? 1 : 0) * turn || (one.queue < other.queue ? -1 : 1);
      });
    }
    this.order = found.map((row) => row.queue);
    return found;
  }

  worth(row, key) {
    if (key === "queue") return row.queue;
    if (key === "backlog") return waiting(row);
    if (key === "consumers") return row.consumers ?? -1;
    if (key === "age") return row.headAgeSec ?? -1;
    if (key in RATED) return this.rateOf(row, RATED[key]);
    return row[key] ?? 0;
  }

  rateOf(row, metric) {
    return row.rates?.[`${metric}PerSec`] ?? this.view.live.history.rate(row.queue, metric) ?? 0;
  }

  // -- the table -------------------------------------------------------------------------------------------------

  drawHead(queues) {
    const states = KEPT.filter((state) => ALWAYS.includes(state) || queues.some((row) => row[state] > 0));
    const columns = ["queue", "backlog", ...states, "age", "in", "out", "fail", "consumers"];
    if (columns.join() === this.columns.join()) return;
    this.columns = columns;
    this.states = states;
    this.rows.rows.clear();
    this.body.replaceChildren();
    replace(
      this.head,
      columns.map((column) => this.headCell(column)),
    );
  }

  headCell(column) {
    const [text, hint] = headOf(column);
    const button = h("button", { type: "button", title: hint }, text);
    const cell = h("th", { scope: "col", class: column === "queue" ? "" : "number", "data-column": column }, button);
    button.addEventListener("click", () => {
      const isSame = this.sort.replace(/^-/, "") === column;
      const falls = isSame ? !this.sort.startsWith("-") : column !== "queue";
      this.sort = `${falls ? "-" : ""}${column}`;
      this.view.setQuery({ sort: this.sort === "queue" ? "" : this.sort });
      this.markSorted();
      this.begin();
    });
    queueMicrotask(() => this.markSorted());
    return cell;
  }

  markSorted() {
    for (const cell of this.head.children) {
      const isSorted = cell.dataset.column === this.sort.replace(/^-/, "");
      mark(cell, "aria-sort", isSorted ? (this.sort.startsWith("-") ? "descending" : "ascending") : null);
    }
  }

  makeRow(first) {
    const name = first.queue;
    const badges = h("span", { class: "badges" });
    const depth = new Sparkline("waiting", SECONDS);
    const depthText = h("span", {});
    const age = h("span", {});
    const ageLine = new Sparkline("age", SECONDS);
    const states = this.states.map((state) => {
      return { state, node: h("a", { href: stateLink(name, state), tabindex: "-1" }) };
    });
    const rates = Object.keys(RATED).map((key) => ({ key, node: h("span", {}) }));
    const consumers = h("span", {});
    const number = (label, ...inside) => h("td", { class: "number", "data-label": label }, inside);
    const node = h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { class: "queue-name", href: link("queues", name) }, name), badges),
      h("td", { class: "number with-spark", "data-label": "backlog" }, depth.node, depthText),
      states.map(({ state, node: cell }) =>
        h("td", { class: "number state", "data-state": state, "data-label": state }, cell),
      ),
      h("td", { class: "number with-spark", "data-label": "age" }, ageLine.node, age),
      rates.map(({ key, node: cell }) => number(headOf(key)[0], cell)),
      number("consumers", consumers),
    );
    const update = (row) => {
      const { history } = this.view.live;
      put(depthText, short(waiting(row)));
      depth.draw(history.points(name, "waiting", SECONDS));
      put(age, row.headAgeSec === null ? "–" : span(Math.floor(row.headAgeSec)));
      ageLine.draw(history.points(name, "age", SECONDS));
      for (const { state, node: cell } of states) {
        put(cell, short(row[state] ?? 0));
        mark(cell.parentNode, "data-zero", (row[state] ?? 0) === 0);
      }
      for (const { key, node: cell } of rates) {
        const value = this.rateOf(row, RATED[key]);
        put(cell, rate(value));
        mark(cell.parentNode, "data-zero", value === 0);
        mark(cell.parentNode, "data-bad", key === "fail" && value > 0);
      }
      put(consumers, count(row.consumers));
      mark(consumers.parentNode, "data-zero", row.consumers === 0);
      mark(consumers.parentNode, "data-bad", lacksConsumer(row));
      showBadges(badges, row);
    };
    return { node, update };
  }

  // -- around it -------------------------------------------------------------------------------------------------

  showEmpty(all, found) {
    this.table.hidden = found === 0;
    this.empty.hidden = found > 0;
    if (found > 0 || this.empty.dataset.why === `${all} ${this.find}`) return;
    this.empty.dataset.why = `${all} ${this.find}`;
    if (all > 0) {
      replace(this.empty, h("p", {}, "No queue name contains ", h("b", {}, this.find), "."));
      return;
    }
    const url = new URL("v1/queues/mail/messages", document.baseURI);
    replace(
      this.empty,
      h("h3", {}, "No queues yet"),
      h("p", {}, "A queue is created with its first message. From a shell:"),
      h("pre", {}, `yirangmq publish --queue mail '{"to": "ann"}'\ncurl -s ${url} --json '{"to": "ann"}'`),
      h("p", {}, "Or here: ", h("a", { href: "#/publish" }, "publish a message"), "."),
    );
  }

  showPager(found) {
    const pages = Math.ceil(found / PER_PAGE);
    this.page = Math.min(this.page, Math.max(0, pages - 1));
    this.pager.hidden = pages < 2;
    const state = `${this.page} ${found}`;
    if (this.pager.hidden || this.pager.dataset.state === state) return;
    this.pager.dataset.state = state;
    const first = this.page * PER_PAGE;
    const shown = `${count(first + 1)}–${count(Math.min(found, first + PER_PAGE))} of ${count(found)}`;
    this.drawPager(shown, this.page >= pages - 1);
  }

  drawPager(shown, isLast) {
    const turn = (step) => () => {
      this.page += step;
      this.order = [];
      this.isOther = true;
      this.show();
      this.table.scrollIntoView();
    };
    replace(
      this.pager,
      h("button", { type: "button", disabled: this.page === 0, onclick: turn(-1) }, "Previous"),
      h("span", {}, shown),
      h("button", { type: "button", disabled: isLast, onclick: turn(1) }, "Next"),
    );
  }
}

function headOf(column) {
  const known = {
    queue: ["queue", "by name"],
    backlog: ["backlog", "delayed, held and ready messages; the line is the last ten minutes"],
    age: ["age", "time since the next message was published; the line is the last ten minutes"],
    in: ["in/s", "published per second, the mean of the last minute"],
    out: ["out/s", "acked per second, the mean of the last minute"],
    fail: ["failed/s", "failed or timed out per second, the mean of the last minute"],
    consumers: ["consumers", "consumers that reported within 10 s, or wait for messages of the queue"],
  };
  return known[column] ?? [column, STATES[column]];
}

function showBadges(badges, row) {
  const isLacking = lacksConsumer(row);
  const wanted = `${row.paused}${row.policyError}${isLacking}`;
  if (badges.dataset.wanted === wanted) return;
  badges.dataset.wanted = wanted;
  replace(
    badges,
    row.paused ? h("span", { class: "badge paused" }, "paused") : null,
    row.policyError ? h("span", { class: "badge bad", title: row.policyError }, "broken policy") : null,
    isLacking ? consumerBadge() : null,
  );
}
