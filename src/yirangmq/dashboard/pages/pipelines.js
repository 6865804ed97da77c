/* Spark pipelines that reported: state, rows, speed, lag, dead letters, last error. */

import { Refused, get } from "../api.js";
import { Rows, h, mark, put } from "../dom.js";
import { count, moment, span } from "../format.js";

const EVERY_MS = 2000;
const COLUMNS = ["state", "from", "to", "rows", "rows/s", "batch", "lag", "dead", "reported", "started"];
const NUMBERS = ["rows", "rows/s", "batch", "lag", "dead"];
const KINDS = { running: "good", starting: "good", failed: "bad", lost: "bad", stopped: "paused" };

export default {
  route: "/pipelines",
  title: () => "Pipelines",
  nav: { label: "Pipelines", order: 40 },
  needs: "/v1/pipelines",
  mount: (view) => new PipelinesPage(view),
};

class PipelinesPage {
  constructor(view) {
    this.view = view;
    this.body = h("tbody", {});
    this.rows = new Rows(this.body, () => row());
    const heads = COLUMNS.map((name) => h("th", { scope: "col", class: NUMBERS.includes(name) ? "number" : "" }, name));
    this.table = h(
      "table",
      { class: "cards pipelines", "aria-label": "Pipelines", hidden: true },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "pipeline"), heads)),
      this.body,
    );
    this.empty = h(
      "div",
      { class: "empty", hidden: true },
      h("h3", {}, "No pipelines reported within the last week"),
      h("p", {}, "A pipeline reports by itself:"),
      h("pre", {}, "yirangmq pipeline process --from topic:orders --to queue:work"),
    );
    view.root.append(h("h1", {}, "Pipelines"), this.table, this.empty);
    this.#watch();
  }

  async #watch() {
    const { signal } = this.view;
    while (!signal.aborted) {
      try {
        const { pipelines } = await get("pipelines", { signal });
        this.table.hidden = pipelines.length === 0;
        this.empty.hidden = pipelines.length > 0;
        this.rows.show(pipelines, (card) => card.pipeline);
      } catch (error) {
        if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }
}

function row() {
  const name = h("b", {});
  const trouble = h("span", { class: "muted" });
  const state = h("span", { class: "badge" });
  const cells = COLUMNS.slice(1).map((label) =>
    h("td", { "data-label": label, class: NUMBERS.includes(label) ? "number nowrap" : "" }),
  );
  const update = (card) => {
    put(name, card.pipeline);
    put(trouble, card.error ?? "");
    mark(trouble, "class", card.state === "failed" ? "wrong" : "muted");
    put(state, card.state);
    mark(state, "class", `badge ${KINDS[card.state] ?? ""}`);
    const silent = Math.max(0, Math.floor((Date.now() - Date.parse(card.seenAt)) / 1000));
    const batch = card.batch === null ? "–" : `${count(card.batch)}, ${count(card.batchMs ?? 0)} ms`;
    const texts = [
      card.source || "–",
      card.target || "–",
      count(card.rows),
      card.rowsPerSecond === null ? "–" : count(card.rowsPerSecond),
      batch,
      card.lag === null ? "–" : count(card.lag),
      count(card.dead),
      silent < 3 ? "now" : `${span(silent)} ago`,
      card.startedAt ? moment(card.startedAt) : "–",
    ];
    texts.forEach((text, index) => put(cells[index], text));
  };
  const head = h("th", { scope: "row" }, name, trouble);
  return { node: h("tr", {}, head, h("td", { "data-label": "state" }, state), cells), update };
}
