/* One message in a drawer: its state, its history, its payload and header. */

import { del, get, getBytes, path, post } from "./api.js";
import { complain, confirm, note, open } from "./dialogs.js";
import { h, replace } from "./dom.js";
import { bytes, moment, relative } from "./format.js";
import { PayloadView, copy } from "./payload.js";
import { link, place } from "./router.js";
import { DROPPABLE, REASONS, STATES } from "./states.js";

const MOST_BYTES = 4 * 1024 * 1024;
/* Larger payloads are loaded on request. */
const OUTSIDE = ["messageId", "queue", "payload", "payloadBase64", "attributes", "type", "timestamp"];

/** Open the drawer; `changed()` is called after a change of the message. The address has the id while it is open. */
export function showMessage(view, queue, id, changed = () => {}) {
  view.setQuery({ message: id });
  const shown = open(id, (close) => new Drawer(view, queue, id, close, changed).node, { kind: "drawer" });
  return shown.finally(() => {
    const { query } = place();
    if (!view.signal.aborted && query.get("message") === id) view.setQuery({ message: "" });
  });
}

/** Another query of the same page may name another message: its drawer replaces the one that is open. */
export function turnMessage(view, queue, query, changed) {
  const id = query.get("message");
  for (const dialog of document.querySelectorAll("dialog.drawer[open]")) dialog.close();
  if (id !== null) showMessage(view, queue, id, changed);
}

class Drawer {
  constructor(view, queue, id, close, changed) {
    Object.assign(this, { view, queue, id, close, changed });
    this.where = path`queues/${queue}/messages/${id}`;
    this.node = h("div", { class: "message" }, h("p", { class: "muted" }, "…"));
    this.#load();
  }

  async #load() {
    try {
      this.#show(await get(this.where, { signal: this.view.signal }));
    } catch (error) {
      replace(this.node, h("p", { class: "wrong" }, error.message));
    }
  }

  #show(story) {
    this.story = story;
    const payload = h("div", {}, this.#payloadHint(story));
    replace(
      this.node,
      h(
        "div",
        { class: "bar-line" },
        h("span", { class: "badge state-badge", "data-state": story.state, title: STATES[story.state] }, story.state),
        this.#actions(story),
      ),
      story.failure === null ? null : this.#failure(story.failure),
      this.#facts(story),
      payload,
      this.#header(story.message),
      this.#history(story.history),
    );
    if (story.bytes !== null && story.bytes <= MOST_BYTES) this.#fetchPayload(payload);
  }

  #payloadHint(story) {
    if (story.message === null) return h("p", { class: "muted" }, "The content of this message is no longer stored, only its id.");
    const button = h("button", { type: "button" }, `Load the payload, ${bytes(story.bytes)}`);
    button.addEventListener("click", () => this.#fetchPayload(button.parentNode));
    return button;
  }

  async #fetchPayload(place) {
    try {
      replace(
        place,
        new PayloadView(this.id, await getBytes(`${this.where}/payload`, { signal: this.view.signal })).node,
      );
    } catch (error) {
      complain(error);
    }
  }

  #facts(story) {
    const now = this.view.live.now();
    const when = (iso) => (iso === null ? null : `${moment(iso)} (${relative(iso, now)})`);
    const due =
      { delayed: "due", leased: "lease ends", dead: "kept until", parked: "kept until", done: "kept until" }[
        story.state
      ] ?? "due";
    const facts = {
      queue: story.queue,
      type: story.message?.type,
      priority: story.priority,
      group: story.message?.groupId,
      "for consumer": story.message?.targetConsumerId,
      attempt: `${story.attempt}${story.leases === story.attempt ? "" : ` (leased ${story.leases} times in all)`}`,
      consumer: story.consumerId,
      published: when(story.publishedAt),
      available: story.availableAt === story.publishedAt ? null : when(story.availableAt),
      [due]: when(story.dueAt),
      expires: when(story.expiresAt),
      changed: when(story.changedAt),
    };
    return listed(facts);
  }

  #failure(failure) {
    const by = failure.consumerId ? ` at consumer ${failure.consumerId}` : "";
    return h(
      "section",
      { class: "failure" },
      h("h3", {}, h("span", { class: "reason", "data-reason": failure.reasonCode }, failure.reasonCode)),
      h("p", { class: "failure-text" }, failure.reasonMessage || REASONS[failure.reasonCode] || ""),
      failure.traceback ? h("pre", { class: "traceback" }, failure.traceback) : null,
      h("p", { class: "muted" }, `Attempt ${failure.attempt}, ${moment(failure.failedAt)}${by}`),
    );
  }

  #header(sent) {
    if (sent === null) return null;
    const given = Object.entries(sent).filter(([name]) => !OUTSIDE.includes(name));
    const attributes = Object.entries(sent.attributes ?? {}).map(([name, value]) => [`attributes.${name}`, value]);
    const all = Object.fromEntries(
      [["timestamp", sent.timestamp], ...given, ...attributes].map(([name, value]) => {
        const isOrigin = name === "causation" && typeof value?.queue === "string" && typeof value.messageId === "string";
        return isOrigin ? ["derived from", origin(value)] : [name, textOf(value)];
      }),
    );
    return h("section", {}, h("h3", {}, "Header"), listed(all));
  }

  #history(steps) {
    return h(
      "section",
      {},
      h("h3", {}, "History"),
      h(
        "ol",
        { class: "history" },
        steps.map((step) => {
          const { at, what, attempt, consumerId, reasonCode, reasonMessage } = step;
          const words = [reasonCode, reasonMessage, attempt ? `attempt ${attempt}` : "", consumerId].filter(Boolean);
          const state = what === "failed" ? "dead" : what === "published" ? "ready" : what;
          return h(
            "li",
            { "data-state": state },
            h("b", {}, what),
            h("time", { datetime: at }, moment(at)),
            h("span", { class: "muted" }, words.join(", ")),
          );
        }),
      ),
    );
  }

  #actions(story) {
    const isLetter = story.state === "dead" || story.state === "parked";
    const button = (text, act, kind = "") =>
      h("button", { type: "button", class: `small ${kind}`, onclick: act }, text);
    return h(
      "span",
      { class: "buttons" },
      isLetter ? button("Redrive", () => this.#move("redrive", "is ready again"), "primary") : null,
      isLetter && story.message !== null
        ? h("a", { class: "button small", href: link("queues", this.story.queue, "send-again", this.id) }, "Edit and send again…")
        : null,
      story.state === "dead" ? button("Quarantine", () => this.#move("quarantine", "is parked")) : null,
      button("Copy id", async () => {
        await copy(this.id);
        note("The id is copied.");
      }),
      DROPPABLE.includes(story.state) ? button("Delete…", () => this.#drop(), "plain-danger") : null,
    );
  }

  async #move(verb, outcome) {
    await this.#act(`${this.id} ${outcome}.`, () =>
      post(path`queues/${this.queue}/dead-letters/${verb}`, { ids: [this.id] }),
    );
  }

  async #drop() {
    const held =
      this.story.state === "leased" ? ` ${this.story.consumerId} holds its lease, and its ack will fail.` : "";
    const text = `The message is dropped permanently.${held}`;
    if (!(await confirm(`Delete ${this.id}?`, { text, yes: "Delete", isDanger: true }))) return;
    await this.#act(`${this.id} is deleted.`, () => del(this.where), true);
  }

  async #act(text, work, isOver = false) {
    try {
      await work();
      note(text);
      this.view.live.touch();
      this.changed();
      if (isOver) this.close(null);
      else await this.#load();
    } catch (error) {
      complain(error);
    }
  }
}

/** The message that this one was made from, as a link. */
function origin({ queue, messageId, hook }) {
  const href = `${link("queues", queue)}?message=${encodeURIComponent(messageId)}`;
  return h("span", {}, h("a", { class: "mono", href }, messageId), ` of ${queue}${hook ? `, by the hook ${hook}` : ", sent again"}`);
}

function textOf(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Names and values; those without a value are left out. */
function listed(facts) {
  const given = Object.entries(facts).filter(([, value]) => value !== null && value !== undefined);
  return h(
    "dl",
    { class: "card-facts" },
    given.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value instanceof Node ? value : String(value)))),
  );
}
