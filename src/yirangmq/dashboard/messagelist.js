/* Messages in pages: rows that open, arrow keys, and a refresh when the queue has moved. */

import { complain } from "./dialogs.js";
import { Rows, h, mark, put, replace, walkable } from "./dom.js";
import { bytes, moment, relative } from "./format.js";
import { showMessage } from "./message.js";

export const PER_PAGE = 50;
const PREVIEW = 160;
const TAIL = 8;
/* Characters at the end of an id that are always shown: ids of one moment begin alike. */

/** `load(cursor)` gives `{messages, cursor}`; `columns` are names of `COLUMNS`; `isChosen`: rows can be ticked. */
export class MessageList {
  constructor(view, { load, columns, empty, canChoose = false, changed = () => {} }) {
    Object.assign(this, { view, load, columns, empty, canChoose, changed });
    this.cursors = [""];
    this.next = null;
    this.chosen = new Set();
    this.isLoading = false;
    this.isStale = false;
    this.head = h("tr", {});
    this.body = h("tbody", {});
    this.table = h("table", { class: "cards messages", "aria-label": "Messages" }, h("thead", {}, this.head), this.body);
    this.nothing = h("div", { class: "empty", hidden: true });
    this.back = h("button", { type: "button", onclick: () => this.#turn(-1) }, "Previous");
    this.forth = h("button", { type: "button", onclick: () => this.#turn(1) }, "Next");
    this.where = h("span", {});
    this.pager = h("div", { class: "pager", hidden: true }, this.back, this.where, this.forth);
    this.node = h("div", { class: "message-list" }, this.table, this.nothing, this.pager);
    this.rows = new Rows(this.body, (message) => this.#row(message));
    walkable(this.body, "button.open");
    this.#drawHead();
  }

  #drawHead() {
    replace(
      this.head,
      this.canChoose ? h("th", { class: "tick" }, this.#tickAll()) : null,
      h("th", { scope: "col" }, "message"),
      this.columns.map((column) => h("th", { scope: "col", class: COLUMNS[column].kind ?? "" }, column)),
    );
  }

  #tickAll() {
    this.all = h("input", { type: "checkbox", "aria-label": "Choose all on this page" });
    this.all.addEventListener("change", () => {
      for (const message of this.shown) this.#choose(message.messageId, this.all.checked);
      this.rows.show(this.shown, (message) => message.messageId);
    });
    return this.all;
  }

  #choose(id, isIn) {
    if (isIn) this.chosen.add(id);
    else this.chosen.delete(id);
    this.changed();
  }

  /** Other columns, other messages: from the beginning. */
  async begin(columns = this.columns) {
    this.columns = columns;
    this.cursors = [""];
    this.chosen.clear();
    this.rows.rows.clear();
    this.body.replaceChildren();
    this.#drawHead();
    this.changed();
    return this.refresh();
  }

  /** Load the same page again. A call during a load causes one more load after it. */
  async refresh() {
    if (this.isLoading) {
      this.isStale = true;
      return;
    }
    this.isLoading = true;
    try {
      do {
        this.isStale = false;
        await this.#fetch();
      } while (this.isStale && !this.view.signal.aborted);
    } finally {
      this.isLoading = false;
    }
  }

  async #fetch() {
    const cursor = this.cursors[this.cursors.length - 1];
    try {
      const page = await this.load(cursor);
      if (cursor !== this.cursors[this.cursors.length - 1]) this.isStale = true;
      else if (page !== null) this.#show(page);
    } catch (error) {
      if (!error.isLost) complain(error);
    }
  }

  #show({ messages, cursor }) {
    this.shown = messages;
    this.next = cursor;
    this.rows.show(messages, (message) => message.messageId);
    const isEmpty = messages.length === 0;
    this.table.hidden = isEmpty;
    this.nothing.hidden = !isEmpty;
    if (isEmpty) replace(this.nothing, this.empty());
    this.pager.hidden = this.cursors.length === 1 && cursor === null;
    this.back.disabled = this.cursors.length === 1;
    this.forth.disabled = cursor === null;
    put(this.where, `page ${this.cursors.length}`);
    if (this.all) this.all.checked = !isEmpty && messages.every((message) => this.chosen.has(message.messageId));
  }

  #turn(step) {
    if (step > 0) this.cursors.push(this.next);
    else this.cursors.pop();
    this.refresh().then(() => this.table.scrollIntoView());
  }

  #row(first) {
    const id = first.messageId;
    const open = () => showMessage(this.view, first.queue, id, () => this.refresh());
    const button = h(
      "button",
      { type: "button", class: "open mono", title: id },
      h("span", {}, id.slice(0, -TAIL)),
      h("span", {}, id.slice(-TAIL)),
    );
    const tick = h("input", { type: "checkbox", "aria-label": `Choose ${id}` });
    tick.addEventListener("change", () => this.#choose(id, tick.checked));
    const cells = this.columns.map((column) => h("td", { class: COLUMNS[column].kind ?? "", "data-label": column }));
    const node = h(
      "tr",
      {},
      this.canChoose ? h("td", { class: "tick" }, tick) : null,
      h("td", { class: "id cut" }, button),
      cells,
    );
    node.addEventListener("click", (event) => {
      if (event.target.closest("input, a, .tick") === null) open();
    });
    const update = (message) => {
      tick.checked = this.chosen.has(id);
      this.columns.forEach((column, index) => {
        const { format, title, state } = COLUMNS[column];
        put(cells[index], format(message, this.view.live.now()));
        if (title) mark(cells[index], "title", title(message));
        if (state) mark(cells[index], "data-reason", state(message));
      });
    };
    return { node, update };
  }
}

/** The columns of a message. */
const COLUMNS = {
  type: {
    format: (message) => message.message?.type ?? "–",
    kind: "cut",
    title: (message) => message.message?.type ?? null,
  },
  priority: { format: (message) => message.priority ?? "–", kind: "number" },
  attempt: { format: (message) => message.attempt, kind: "number" },
  published: at("publishedAt"),
  due: at("dueAt"),
  done: at("changedAt"),
  "lease ends": at("dueAt"),
  consumer: { format: (message) => message.consumerId ?? "–", kind: "cut" },
  group: { format: (message) => message.message?.groupId ?? "–", kind: "cut" },
  reason: {
    format: (message) => message.failure?.reasonCode ?? message.reasonCode ?? "–",
    kind: "reason",
    state: (message) => message.reasonCode,
  },
  failed: {
    format: (message, now) => relative(message.failure?.failedAt ?? message.changedAt, now),
    kind: "nowrap",
    title: (message) => moment(message.failure?.failedAt ?? message.changedAt),
  },
  "reason text": {
    format: (message) => message.failure?.reasonMessage || "–",
    kind: "cut whole",
    title: (message) => message.failure?.reasonMessage || null,
  },
  size: { format: (message) => bytes(message.bytes), kind: "number nowrap" },
  payload: { format: preview, kind: "cut whole mono" },
};

function at(member) {
  return {
    format: (message, now) => relative(message[member], now),
    kind: "nowrap",
    title: (message) => moment(message[member]),
  };
}

function preview({ message }) {
  if (message === null) return "content no longer stored";
  const text = "payloadBase64" in message ? readable(message.payloadBase64) : JSON.stringify(message.payload);
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

/** The beginning of bytes, as far as they are text. */
function readable(coded) {
  const text = atob(coded.slice(0, Math.ceil(PREVIEW / 3) * 4));
  return text.replace(/[^\x20-\x7e]/g, "·");
}

/** The columns of each state. */
export const COLUMNS_OF = {
  draft: ["published", "size"],
  delayed: ["type", "priority", "attempt", "due", "size", "payload"],
  held: ["type", "group", "priority", "published", "size", "payload"],
  ready: ["type", "priority", "attempt", "published", "size", "payload"],
  claimed: ["type", "consumer", "attempt", "size", "payload"],
  leased: ["type", "consumer", "attempt", "lease ends", "size", "payload"],
  dead: ["reason", "reason text", "attempt", "failed", "type", "payload"],
  parked: ["reason", "reason text", "attempt", "failed", "type", "payload"],
  done: ["type", "attempt", "done", "size", "payload"],
};
