/* One topic: its numbers, its records as they are published, and a form to publish one. */

import { Refused, get, path, withQuery } from "../api.js";
import { h, mark, put, replace } from "../dom.js";
import { bytes, count, moment, rate } from "../format.js";
import { RecordForm } from "../recordform.js";
import { Tail } from "../topictail.js";

const EVERY_MS = 1000;
const LOOK_BACK = 1000;
/* Sequences at the end of the log that are searched for records of this topic. */

export default {
  route: "/topics/{topic}",
  title: ({ topic }) => topic,
  needs: "/v1/topics",
  mount: (view) => new TopicPage(view),
};

class TopicPage {
  constructor(view) {
    this.view = view;
    this.topic = view.values.topic;
    this.facts = h("dl", { class: "facts" });
    this.missing = h("p", { class: "muted", hidden: true }, "This topic does not exist yet; it is created with its first record.");
    this.form = new RecordForm(this.topic).node;
    this.form.id = "record-form";
    this.form.hidden = true;
    this.publish = h("button", { type: "button", class: "primary", "aria-expanded": "false", "aria-controls": "record-form" }, "Publish a record…");
    this.publish.addEventListener("click", () => this.#turnForm());
    this.tail = new Tail(this.topic, view.signal);
    view.root.append(
      h("nav", { class: "crumbs", "aria-label": "Back" }, h("a", { href: "#/topics" }, "‹ Topics")),
      h("h1", {}, this.topic),
      this.facts,
      this.missing,
      h("div", {}, this.publish),
      this.form,
      this.tail.node,
    );
    this.#begin();
    this.#watch();
  }

  /** Show the latest records, then follow the feed without a gap. */
  async #begin() {
    const { signal } = this.view;
    for (;;) {
      try {
        await get(withQuery(path`topics/${this.topic}/records`, { limit: 1 }), { signal });
        const { first, last } = await get("topics", { signal });
        this.tail.follow(Math.max(1, first, last - LOOK_BACK + 1));
        return;
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!(error instanceof Refused)) throw error;
        if (error.status >= 400 && error.status < 500) return this.tail.explain(error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  #turnForm() {
    this.form.hidden = !this.form.hidden;
    mark(this.publish, "aria-expanded", String(!this.form.hidden));
    put(this.publish, this.form.hidden ? "Publish a record…" : "Close the form");
    if (!this.form.hidden) this.form.querySelector("textarea").focus();
  }

  async #watch() {
    const { signal } = this.view;
    while (!signal.aborted) {
      try {
        const { topics } = await get("topics", { signal });
        this.#show(topics.find((row) => row.topic === this.topic));
      } catch (error) {
        if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  #show(row) {
    this.missing.hidden = row !== undefined;
    if (row === undefined) return;
    const facts = {
      records: count(row.records),
      size: bytes(row.bytes),
      "records/s": rate(row.publishedPerSec),
      "last in topic": count(row.topicSequence),
      "last in log": count(row.sequence),
      latest: moment(row.at),
    };
    if (this.facts.children.length === 0) {
      replace(
        this.facts,
        Object.keys(facts).map((name) => h("div", {}, h("dt", {}, name), h("dd", {}))),
      );
    }
    Object.values(facts).forEach((text, index) => put(this.facts.children[index].lastChild, text));
  }
}
