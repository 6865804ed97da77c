/* The main page of a queue: its charts, and its messages by state. */

import { get, path, withQuery } from "../api.js";
import { AGE, ChartGroup, DEPTH, RATES } from "../chartgroup.js";
import { h, put } from "../dom.js";
import { FilterBox } from "../filterbox.js";
import { showMessage, turnMessage } from "../message.js";
import { COLUMNS_OF, MessageList, PER_PAGE } from "../messagelist.js";
import { QueueFrame } from "../queueframe.js";
import { link } from "../router.js";
import { KEPT, STATES } from "../states.js";

const EXAMPLE = "payload.to=ann and attempt>=2";

const page = {
  route: "/queues/{queue}",
  title: ({ queue }) => queue,
  tab: { label: "Messages", order: 10 },
  mount: (view) => new Messages(view),
};
export default page;

class Messages {
  constructor(view) {
    this.view = view;
    this.queue = view.values.queue;
    const asked = view.query.get("state");
    this.state = KEPT.includes(asked) ? asked : "ready";
    this.filter = view.query.get("filter") ?? "";
    this.seen = "";
    this.charts = new ChartGroup(view, this.queue, [RATES, DEPTH, AGE]);
    this.title = h("h2", {});
    this.box = new FilterBox(this.filter, EXAMPLE, (text) => this.choose(this.state, text));
    this.list = new MessageList(view, {
      load: (cursor) => this.load(cursor),
      columns: COLUMNS_OF[this.state],
      empty: () => this.nothing(),
    });
    this.frame = new QueueFrame(view, page, { onRow: (row) => this.show(row), chosen: () => this.state });
    this.frame.body.append(
      this.charts.node,
      h("div", { class: "bar-line" }, this.title, h("span", { class: "muted" }, STATES[this.state])),
      this.box.node,
      this.list.node,
    );
    this.name();
    this.list.refresh();
    const wanted = view.query.get("message");
    if (wanted !== null) showMessage(view, this.queue, wanted, () => this.list.refresh());
  }

  show(row) {
    this.charts.show();
    const seen = row === null ? "" : `${row.counts[this.state]} ${JSON.stringify(row.totals)}`;
    if (seen !== this.seen && this.seen !== null) this.list.refresh();
    this.seen = seen;
  }

  name() {
    put(this.title, `${this.state[0].toUpperCase()}${this.state.slice(1)} messages`);
    put(this.title.nextSibling, STATES[this.state]);
  }

  /** Another query of the same page: a state's box was clicked. */
  turn(query) {
    this.box.input.value = query.get("filter") ?? "";
    const asked = query.get("state") ?? "ready";
    this.choose(KEPT.includes(asked) ? asked : "ready", this.box.value);
    this.title.scrollIntoView({ block: "nearest" });
    turnMessage(this.view, this.queue, query, () => this.list.refresh());
  }

  choose(state, filter) {
    this.state = state;
    this.filter = filter;
    this.view.setQuery({ state: state === "ready" ? "" : state, filter });
    this.name();
    this.frame.turn();
    this.list.begin(COLUMNS_OF[state]);
  }

  async load(cursor) {
    const query = { state: this.state, filter: this.filter, limit: PER_PAGE, cursor };
    try {
      const found = await get(withQuery(path`queues/${this.queue}/messages`, query), {
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

  nothing() {
    if (this.filter) return h("p", {}, "No ", h("b", {}, this.state), " message matches the filter.");
    const hint =
      this.state === "ready"
        ? h(
            "p",
            {},
            h("a", { href: link("queues", this.queue, "publish") }, "Publish one"),
            ", or choose another state above.",
          )
        : null;
    return [h("p", {}, "No message is ", h("b", {}, this.state), "."), hint];
  }
}
