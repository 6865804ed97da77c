/* The form to publish one record. An error of the server is shown at its field. */

import { path, post } from "./api.js";
import { complain } from "./dialogs.js";
import { h, mark, put } from "./dom.js";
import { Complaint, Editor } from "./editor.js";
import { count } from "./format.js";
import { mistake } from "./jsontext.js";

export class RecordForm {
  constructor(topic) {
    this.topic = topic;
    this.payload = new Editor("Payload", { rows: 4, changed: () => this.#clear() });
    this.payload.value = '{"temp": 36.1}';
    this.key = h("input", { type: "text", name: "key", autocomplete: "off", spellcheck: "false" });
    this.headers = h("input", { type: "text", name: "headers", autocomplete: "off", spellcheck: "false" });
    this.complaints = { payload: new Complaint(), key: new Complaint(), headers: new Complaint() };
    this.result = h("p", { class: "published", role: "status" });
    for (const input of [this.key, this.headers]) input.addEventListener("input", () => this.#clear());
    this.node = h(
      "form",
      { class: "publish record-form panel", novalidate: true, onsubmit: (event) => this.#submit(event) },
      this.#field("payload", "Payload", "JSON, or any text; Ctrl+Enter publishes", this.payload.node, "div"),
      h(
        "div",
        { class: "fields" },
        this.#field("key", "Key", "records of one key belong together", this.key, "label"),
        this.#field("headers", "Headers", 'a JSON object of texts, such as {"site": "north"}', this.headers, "label"),
      ),
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Publish"), this.result),
    );
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.node.requestSubmit();
    });
  }

  #field(name, label, hint, node, tag) {
    const parts = [h("span", { class: "field-head" }, label), node, h("span", { class: "hint" }, hint)];
    return h(tag, { class: "field", "data-field": name }, parts, this.complaints[name].node);
  }

  #clear() {
    for (const complaint of Object.values(this.complaints)) complaint.show(null);
    for (const input of [this.key, this.headers]) mark(input, "aria-invalid", null);
  }

  #blame(name, text) {
    this.complaints[name].show(text);
    const input = { payload: this.payload.area, key: this.key, headers: this.headers }[name];
    if (name !== "payload") mark(input, "aria-invalid", "true");
    input.focus();
  }

  async #submit(event) {
    event.preventDefault();
    this.#clear();
    const written = this.headers.value.trim();
    if (written && mistake(written) !== null) return this.#blame("headers", "must be a JSON object of texts");
    const text = this.payload.value;
    const content = mistake(text) === null ? `"payload":${text}` : `"payloadBase64":"${base64(text)}"`;
    const key = this.key.value ? `,"key":${JSON.stringify(this.key.value)}` : "";
    try {
      const body = `{${content}${key}${written ? `,"headers":${written}` : ""}}`;
      const stored = await post(path`topics/${this.topic}/records`, body);
      put(this.result, `Stored as sequence ${count(stored.last)}, ${count(stored.topicSequence)} of the topic.`);
    } catch (error) {
      const name = Object.keys(this.complaints).find((one) => error.field?.startsWith(one));
      if (name) this.#blame(name, error.message);
      else complain(error);
    }
  }
}

function base64(text) {
  const raw = new TextEncoder().encode(text);
  let letters = "";
  for (const byte of raw) letters += String.fromCharCode(byte);
  return btoa(letters);
}
