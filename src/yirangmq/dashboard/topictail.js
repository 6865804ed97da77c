/* The latest records of a topic, the newest on top; it follows the feed and can be paused. */

import { path, withQuery } from "./api.js";
import { h, mark, put } from "./dom.js";
import { follow } from "./events.js";
import { bytes, clock, count, plural } from "./format.js";

const KEPT = 200;
/* Rows; the oldest are removed. */
const PREVIEW = 160;
const WHOLE = 20_000;
/* Characters of a payload that are shown. */
const DRAW_MS = 200;

export class Tail {
  constructor(topic, signal) {
    this.topic = topic;
    this.signal = signal;
    this.waiting = [];
    this.isHeld = false;
    this.newer = 0;
    /* Records since the list was drawn; those above KEPT are not kept. */
    this.timer = 0;
    this.body = h("tbody", {});
    this.note = h("span", { class: "muted", role: "status" });
    this.hold = h("button", { type: "button", class: "small", "aria-pressed": "false", onclick: () => this.#turn() }, "Pause list");
    this.empty = h("p", { class: "muted" }, "Records appear here as they are published.");
    const head = ["sequence", "in topic", "time", "key", "payload"].map((name, index) =>
      h("th", { scope: "col", class: index < 2 ? "number" : "" }, name),
    );
    this.table = h("table", { class: "cards tail", "aria-label": "Records", hidden: true }, h("thead", {}, h("tr", {}, head)), this.body);
    this.node = h(
      "section",
      { class: "tail-part" },
      h("div", { class: "bar-line" }, h("h2", {}, "Records"), this.note, this.hold),
      this.table,
      this.empty,
    );
  }

  explain(text) {
    put(this.empty, text);
  }

  /** From this sequence on, until the page is left. */
  follow(fromSeq) {
    const where = withQuery(path`topics/${this.topic}/events`, { fromSeq });
    const stream = follow(where, (data) => this.#add(data), () => {});
    this.signal.addEventListener("abort", () => stream.close());
  }

  #add(data) {
    const record = JSON.parse(data);
    if (record.sequence === undefined) return;
    this.waiting.push({ ...record, text: payloadText(record, data) });
    this.newer += 1;
    if (this.waiting.length > KEPT) this.waiting.shift();
    this.timer ||= setTimeout(() => this.#draw(), this.body.firstChild === null ? 0 : DRAW_MS);
  }

  #turn() {
    this.isHeld = !this.isHeld;
    mark(this.hold, "aria-pressed", String(this.isHeld));
    put(this.hold, this.isHeld ? "Resume list" : "Pause list");
    this.#draw();
  }

  #draw() {
    this.timer = 0;
    put(this.note, this.isHeld && this.newer > 0 ? `${plural(this.newer, "newer record")} not shown` : "");
    if (this.isHeld || this.waiting.length === 0) return;
    this.newer = 0;
    this.body.prepend(...this.waiting.splice(0).reverse().map(row));
    while (this.body.children.length > KEPT) this.body.lastChild.remove();
    this.table.hidden = false;
    this.empty.hidden = true;
  }
}

function row(record) {
  const at = new Date(record.at);
  const cell = (label, kind, text) => h("td", { class: kind, "data-label": label }, text);
  return h(
    "tr",
    {},
    h("th", { scope: "row", class: "number" }, count(record.sequence)),
    cell("in topic", "number", count(record.topicSequence)),
    cell("time", "nowrap", `${clock(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`),
    cell("key", "", record.key ?? "–"),
    h("td", { class: "whole", "data-label": "payload" }, content(record)),
  );
}

function content(record) {
  const { text } = record;
  const headers = Object.entries(record.headers);
  if (text.length <= PREVIEW && !headers.length && !text.includes("\n")) return h("code", {}, text || "empty");
  const whole = text.length > WHOLE ? `${text.slice(0, WHOLE)}\n… ${count(text.length - WHOLE)} characters more` : text;
  return h(
    "details",
    {},
    h("summary", {}, h("code", {}, text.slice(0, PREVIEW).replace(/\s+/g, " ") || "empty")),
    headers.length
      ? h("dl", { class: "facts" }, headers.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))
      : null,
    h("pre", { class: "payload" }, whole),
  );
}

/** JSON with its digits unchanged; other bytes as text, or in base64 if they are not text. */
function payloadText(record, data) {
  if (record.payloadBase64 === undefined) return lastMember(data, "payload");
  const raw = Uint8Array.from(atob(record.payloadBase64), (letter) => letter.charCodeAt(0));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    return `${bytes(raw.length)} of binary data: ${record.payloadBase64}`;
  }
}

/** The text of the last member of an object, by its name. */
function lastMember(text, name) {
  let depth = 0;
  for (const token of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]]/g)) {
    if (token[0] === "{" || token[0] === "[") depth += 1;
    else if (token[0] === "}" || token[0] === "]") depth -= 1;
    else if (depth === 1 && token[0] === `"${name}"`) {
      const colon = token.index + token[0].length;
      if (text[colon] === ":") return text.slice(colon + 1, -1).trim();
    }
  }
  return "";
}
