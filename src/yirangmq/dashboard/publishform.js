/* The form to publish one message. An error of the server is shown at its field. */

import { path, post } from "./api.js";
import { complain, note } from "./dialogs.js";
import { h, mark, replace } from "./dom.js";
import { Complaint, Editor } from "./editor.js";
import { bytes } from "./format.js";
import { indented, mistake } from "./jsontext.js";
import { link } from "./router.js";

const KINDS = { json: "JSON", text: "Text", file: "File" };
const SAME = "same";
/* The unchanged bytes of an earlier message that is not text. */
const FIELDS = [
  { name: "type", label: "Type", hint: "such as order.created" },
  { name: "priority", label: "Priority", hint: "0 is first; empty is last", isNumber: true },
  { name: "delaySec", label: "Delay", hint: "seconds until it is ready", isNumber: true },
  { name: "ttlSec", label: "Time to live", hint: "seconds; then an unleased message expires", isNumber: true },
  { name: "groupId", label: "Group", hint: "messages of a group are delivered one at a time, in order" },
  { name: "targetConsumerId", label: "For consumer", hint: "only this consumer can lease it" },
  { name: "messageId", label: "Id", hint: "generated if empty" },
  { name: "deduplicationKey", label: "Deduplication key", hint: "a duplicate within the window is not stored" },
];

export class PublishForm {
  /** `queue` null: the form has a field for it. `earlier`: the message that fills the form, see `pages/send_again.js`; `sent(receipt)` is called
   * after a message was stored. */
  constructor(view, queue, { earlier = null, sent = () => {} } = {}) {
    Object.assign(this, { view, queue, earlier, sent });
    this.kind = "json";
    this.fields = new Map();
    this.editor = new Editor("Payload", { rows: 12, changed: () => this.#clear("payload") });
    this.editor.value = '{\n  "to": "ann"\n}';
    this.file = h("input", { type: "file", "aria-label": "File", hidden: true });
    this.attributes = new Editor("Attributes", { rows: 3, changed: () => this.#clear("attributes") });
    this.send = h("button", { class: "primary" }, "Publish");
    this.result = h("p", { class: "published", role: "status" });
    this.kinds = h("span", { class: "choices", role: "group", "aria-label": "Payload is" });
    this.node = h(
      "form",
      { class: "publish panel", novalidate: true, onsubmit: (event) => this.#submit(event) },
      queue === null ? this.#field({ name: "queue", label: "Queue", hint: "created if it does not exist" }) : null,
      this.#payload(),
      h(
        "div",
        { class: "fields" },
        FIELDS.map((field) => this.#field(field)),
      ),
      this.#labelled("attributes", "Attributes", "a JSON object", this.attributes.node, this.attributes),
      h("div", { class: "buttons" }, this.send, this.result),
    );
    if (earlier !== null) this.#fill(earlier);
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.node.requestSubmit();
    });
  }

  #fill({ kind, text, members, priority, attributes }) {
    if (text !== null) this.editor.value = kind === "json" ? indented(text) : text;
    this.filled = this.editor.value;
    if (Object.keys(attributes).length > 0) this.attributes.value = JSON.stringify(attributes, null, 2);
    for (const name of ["type", "groupId", "targetConsumerId"]) this.node.elements[name].value = members[name] ?? "";
    this.node.elements.priority.value = priority ?? "";
    this.#choose(kind, [...this.kinds.children].find((button) => button.dataset.payload === kind));
  }

  #payload() {
    const kinds = this.earlier?.kind === SAME ? { ...KINDS, [SAME]: `Unchanged, ${bytes(this.earlier.bytes.length)}` } : KINDS;
    replace(
      this.kinds,
      Object.entries(kinds).map(([kind, label]) =>
        h(
          "button",
          {
            type: "button",
            class: "small",
            "data-payload": kind,
            "aria-pressed": String(kind === this.kind),
            onclick: (event) => this.#choose(kind, event.target),
          },
          label,
        ),
      ),
    );
    const field = this.#labelled(
      "payload",
      "Payload",
      "Ctrl+Enter publishes",
      h("div", {}, this.editor.node, this.file),
      this.editor,
    );
    field.firstChild.append(this.kinds);
    return field;
  }

  #choose(kind, button) {
    this.kind = kind;
    for (const other of this.kinds.children) mark(other, "aria-pressed", String(other === button));
    this.editor.node.hidden = kind === "file" || kind === SAME;
    this.file.hidden = kind !== "file";
    this.#clear("payload");
  }

  #field({ name, label, hint, isNumber = false }) {
    const input = h("input", {
      type: "text",
      name,
      inputmode: isNumber ? "decimal" : null,
      autocomplete: "off",
      spellcheck: "false",
    });
    input.addEventListener("input", () => this.#clear(name));
    return this.#labelled(name, label, hint, input, input);
  }

  #labelled(name, label, hint, node, input) {
    const complaint = new Complaint();
    this.fields.set(name, { input, complaint });
    return h(
      input instanceof Editor ? "div" : "label",
      { class: "field", "data-field": name },
      h("span", { class: "field-head" }, label),
      node,
      h("span", { class: "hint" }, hint),
      complaint.node,
    );
  }

  // -- errors ----------------------------------------------------------------------------------------------------

  #clear(name) {
    const { input, complaint } = this.fields.get(name);
    complaint.show(null);
    if (input instanceof Editor) input.blame(null);
    else mark(input, "aria-invalid", null);
  }

  #blame(name, text, place = null) {
    const { input, complaint } = this.fields.get(name);
    complaint.show(text);
    if (input instanceof Editor) input.blame(place, complaint.id);
    else {
      mark(input, "aria-invalid", "true");
      mark(input, "aria-describedby", complaint.id);
    }
    (input instanceof Editor ? input.area : input).focus();
  }

  /** The server's name for a field to ours. */
  #blameServer(error) {
    const renamed = {
      "attributes.priority": "priority",
      delay: "delaySec",
      ttl: "ttlSec",
      document: "payload",
      body: "payload",
      payloadBase64: "payload",
      maxBytes: "payload",
    };
    const field = renamed[error.field] ?? error.field ?? "";
    const name = this.fields.has(field) ? field : this.fields.has(field.split(".")[0]) ? field.split(".")[0] : null;
    if (name === null) complain(error);
    else this.#blame(name, error.message);
  }

  // -- sending ---------------------------------------------------------------------------------------------------

  async #submit(event) {
    event.preventDefault();
    for (const name of this.fields.keys()) this.#clear(name);
    const queue = this.queue ?? this.node.elements.queue.value.trim();
    if (queue === "") {
      this.#blame("queue", "is needed");
      return;
    }
    const body = await this.#document();
    if (body === null) return;
    this.send.disabled = true;
    try {
      const answer = await post(path`queues/${queue}/messages`, body);
      this.#report(queue, answer.messages[0]);
      await this.sent(answer.messages[0]);
      this.view.live.touch();
    } catch (error) {
      this.#blameServer(error);
    } finally {
      this.send.disabled = false;
    }
  }

  #report(queue, receipt) {
    const id = h(
      "a",
      { class: "mono", href: `${link("queues", queue)}?message=${encodeURIComponent(receipt.messageId)}` },
      receipt.messageId,
    );
    const words = receipt.refused
      ? `is a dead letter: ${receipt.refused}`
      : receipt.duplicate
        ? "was already stored; nothing was added"
        : "is published and on disk";
    replace(this.result, id, ` ${words}.`);
    note(`${receipt.messageId} ${words}.`, receipt.refused ? "bad" : "good");
  }

  /** The envelope as text: the payload's own text stands in it untouched. Null where something is wrong. */
  async #document() {
    const members = this.#members();
    const payload = members === null ? null : await this.#payloadMember();
    if (payload === null) return null;
    const parts = Object.entries({ ...members, ...payload.more }).map(
      ([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`,
    );
    return `{${[...parts, payload.text].join(",")}}`;
  }

  #members() {
    const attributes = this.attributes.value.trim() === "" ? {} : this.#attributesGiven();
    if (attributes === null) return null;
    const kept = Object.entries(this.earlier?.members ?? {}).filter(([name]) => !FIELDS.some((field) => field.name === name));
    const members = { ...Object.fromEntries(kept), messageId: this.#text("messageId") || newId() };
    for (const { name, isNumber } of FIELDS) {
      const text = this.#text(name);
      if (text === "") continue;
      if (isNumber && !Number.isFinite(Number(text))) {
        this.#blame(name, "must be a number");
        return null;
      }
      if (name === "priority") attributes.priority = Number(text);
      else members[name] = isNumber ? Number(text) : text;
    }
    return Object.keys(attributes).length > 0 ? { ...members, attributes } : members;
  }

  #attributesGiven() {
    const wrong = mistake(this.attributes.value);
    if (wrong !== null) {
      this.#blame("attributes", wrong.text, wrong);
      return null;
    }
    const value = JSON.parse(this.attributes.value);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
    this.#blame("attributes", "must be a JSON object");
    return null;
  }

  async #payloadMember() {
    const contentType = this.earlier?.members.contentType;
    if (this.kind === SAME) return coded(this.earlier.bytes, contentType ?? "application/octet-stream");
    if (this.kind === "file") {
      const [file] = this.file.files;
      if (file !== undefined)
        return coded(new Uint8Array(await file.arrayBuffer()), file.type || "application/octet-stream");
      this.#blame("payload", "choose a file");
      this.file.focus();
      return null;
    }
    const isUnchanged = this.earlier !== null && this.editor.value === this.filled;
    const text = isUnchanged ? this.earlier.text : this.editor.value;
    if (this.kind === "text") return coded(new TextEncoder().encode(text), contentType ?? "text/plain; charset=utf-8");
    const wrong = mistake(text);
    if (wrong === null) return { more: {}, text: `"payload":${text}` };
    this.#blame("payload", `is not JSON: ${wrong.text}`, wrong);
    return null;
  }

  #text(name) {
    return this.node.elements[name].value.trim();
  }
}

/** Any bytes as a member of an envelope. */
function coded(raw, contentType) {
  let letters = "";
  for (let at = 0; at < raw.length; at += 8192) letters += String.fromCharCode(...raw.subarray(at, at + 8192));
  return { more: { contentType }, text: `"payloadBase64":"${btoa(letters)}"` };
}

/** A UUID that sorts by time (version 7). Made here, so that sending twice stores once. */
function newId() {
  const raw = crypto.getRandomValues(new Uint8Array(16));
  let now = Date.now();
  for (let place = 5; place >= 0; place -= 1) {
    raw[place] = now % 256;
    now = Math.floor(now / 256);
  }
  raw[6] = (raw[6] & 0x0f) | 0x70;
  raw[8] = (raw[8] & 0x3f) | 0x80;
  const text = Array.from(raw, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return text.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
