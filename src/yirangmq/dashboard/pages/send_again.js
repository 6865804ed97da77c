/* A dead letter edited and sent again: a new message with a new id, which names the old one. */

import { get, getBytes, path, post } from "../api.js";
import { complain, note } from "../dialogs.js";
import { h } from "../dom.js";
import { isJson } from "../jsontext.js";
import { decoded } from "../payload.js";
import { PublishForm } from "../publishform.js";
import { QueueFrame } from "../queueframe.js";
import { link } from "../router.js";

const OWN = ["messageId", "timestamp", "queue", "payload", "payloadBase64", "payloadSha256", "deduplicationKey", "causation", "attributes"];
/* Members that the new message does not take over as they are. With the old deduplication key it would not be stored. */
const MOST_EDITED = 500_000;
/* Bytes; a larger text is sent unchanged or replaced, because the editor colours all of it at each key. */
const AFTERWARDS = {
  keep: { label: "keep it" },
  quarantine: { label: "quarantine it", done: "is parked" },
  purge: { label: "purge it", done: "is purged" },
};

const page = {
  route: "/queues/{queue}/send-again/{id}",
  title: ({ id }) => `Send again: ${id}`,
  mount: (view) => new SendAgain(view),
};
export default page;

class SendAgain {
  constructor(view) {
    this.view = view;
    this.queue = view.values.queue;
    this.id = view.values.id;
    this.body = new QueueFrame(view, page).body;
    this.where = path`queues/${this.queue}/messages/${this.id}`;
    this.#load();
  }

  async #load() {
    const { signal } = this.view;
    try {
      const [story, { bytes }] = await Promise.all([get(this.where, { signal }), getBytes(`${this.where}/payload`, { signal })]);
      this.#show(story, earlier(story, bytes, this.queue));
    } catch (error) {
      if (error.name !== "AbortError") this.body.append(h("p", { class: "wrong", role: "alert" }, error.message));
    }
  }

  #show(story, found) {
    const old = h("a", { class: "mono", href: `${link("queues", this.queue, "dead-letters")}?message=${encodeURIComponent(this.id)}` }, this.id);
    const isLetter = story.state === "dead" || story.state === "parked";
    const failure = story.failure === null ? "" : ` It failed with ${story.failure.reasonCode}: ${story.failure.reasonMessage || "no text"}.`;
    this.choice = h(
      "select",
      { name: "afterwards" },
      Object.entries(AFTERWARDS).map(([value, { label }]) => h("option", { value }, label)),
    );
    this.body.append(
      h("h2", {}, "Edit and send again"),
      h("p", { class: "muted" }, "A copy of ", old, " with a new id and a link to the old message.", failure),
      isLetter ? h("label", { class: "field afterwards" }, h("span", {}, "The dead letter, once the new message is stored"), this.choice) : null,
      new PublishForm(this.view, this.queue, { earlier: found, sent: (receipt) => this.#afterwards(receipt) }).node,
    );
  }

  async #afterwards(receipt) {
    const verb = this.choice.value;
    if (verb === "keep" || receipt.duplicate || receipt.refused) return;
    try {
      await post(path`queues/${this.queue}/dead-letters/${verb}`, { ids: [this.id] });
      note(`${this.id} ${AFTERWARDS[verb].done}.`);
      this.choice.value = "keep";
    } catch (error) {
      complain(error);
    }
  }
}

/** What the form begins with. `members` are kept as they are where the form has no field for them. */
function earlier(story, bytes, queue) {
  const text = decoded(bytes);
  const { priority, ...attributes } = story.message.attributes ?? {};
  const members = Object.fromEntries(Object.entries(story.message).filter(([name]) => !OWN.includes(name)));
  return {
    bytes,
    text: bytes.length > MOST_EDITED ? null : text,
    kind: text === null || bytes.length > MOST_EDITED ? "same" : isJson(text) ? "json" : "text",
    members: { ...members, causation: { queue, messageId: story.messageId } },
    priority: priority ?? null,
    attributes,
  };
}
