/* The policy of a queue, edited as JSON and checked by the server while it is typed. */

import { del, get, path, post, put as putDocument } from "../api.js";
import { complain, confirm, note } from "../dialogs.js";
import { h, put, replace } from "../dom.js";
import { Complaint, Editor } from "../editor.js";
import { coloured, locate, mistake } from "../jsontext.js";
import { QueueFrame } from "../queueframe.js";

const CHECK_MS = 250;

const page = {
  route: "/queues/{queue}/policy",
  title: ({ queue }) => `Policy of ${queue}`,
  tab: { label: "Policy", order: 40 },
  mount: (view) => new Policy(view),
};
export default page;

class Policy {
  constructor(view) {
    this.view = view;
    this.queue = view.values.queue;
    this.where = path`queues/${this.queue}/policy`;
    this.kept = "";
    this.editor = new Editor("Policy, a JSON document", { rows: 18, changed: () => this.#changed() });
    this.complaint = new Complaint();
    this.state = h("span", { class: "muted", role: "status" });
    this.save = h("button", { type: "button", class: "primary", disabled: true, onclick: () => this.#save() }, "Save");
    this.revert = h("button", { type: "button", disabled: true, onclick: () => this.#revert() }, "Revert");
    this.reset = h(
      "button",
      { type: "button", class: "plain-danger", onclick: () => this.#reset() },
      "Reset to defaults…",
    );
    this.force = h("pre", { class: "payload in-force", tabindex: "0", "aria-label": "The policy in force" });
    this.title = h("h2", {}, "In force");
    new QueueFrame(view, page).body.append(
      h(
        "div",
        { class: "two" },
        h(
          "section",
          { class: "policy-edit" },
          h("h2", {}, "Settings"),
          h("p", { class: "muted" }, "Members that are not set have their defaults."),
          this.editor.node,
          this.complaint.node,
          h("div", { class: "buttons" }, this.save, this.revert, this.reset, this.state),
        ),
        h(
          "section",
          {},
          this.title,
          h("p", { class: "muted" }, "All members; those that differ from the default are marked."),
          this.force,
        ),
      ),
    );
    this.#load();
  }

  async #load() {
    try {
      const defaults = await post(`${this.where}/check`, {}, { signal: this.view.signal });
      this.defaults = defaults.policy;
      this.#show(await get(this.where, { signal: this.view.signal }));
    } catch (error) {
      complain(error);
    }
  }

  #show({ policy, set }) {
    this.kept = JSON.stringify(set ?? {}, null, 2);
    this.editor.value = this.kept;
    this.complaint.show(null);
    this.#showForce(policy, "In force");
    this.#ready(false);
  }

  /** The whole policy; lines that differ from the default are marked. */
  #showForce(policy, title) {
    put(this.title, title);
    const text = JSON.stringify(policy, null, 2);
    replace(
      this.force,
      text.split("\n").map((line, index, lines) => {
        const isChanged = changed(lines, index, policy, this.defaults);
        return h("span", { class: isChanged ? "differs" : "" }, coloured(line));
      }),
    );
  }

  #ready(isGood) {
    const isSame = this.editor.value === this.kept;
    this.save.disabled = !isGood || isSame;
    this.revert.disabled = isSame;
  }

  // -- checking --------------------------------------------------------------------------------------------------

  #changed() {
    this.#ready(false);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#check(), CHECK_MS);
  }

  async #check() {
    const text = this.editor.value.trim() === "" ? "{}" : this.editor.value;
    const wrong = mistake(text);
    if (wrong !== null) {
      this.#blame(`not JSON: ${wrong.text}`, wrong);
      return;
    }
    try {
      const { policy } = await post(`${this.where}/check`, text, { signal: this.view.signal });
      if (text !== (this.editor.value.trim() === "" ? "{}" : this.editor.value)) return;
      this.complaint.show(null);
      this.editor.blame(null);
      put(this.state, "Valid.");
      this.#showForce(policy, this.editor.value === this.kept ? "In force" : "In force after saving");
      this.#ready(true);
    } catch (error) {
      if (error.isLost || error.field === null) complain(error);
      else this.#blame(`${error.field}: ${error.message}`, locate(text, error.field));
    }
  }

  #blame(text, place) {
    put(this.state, "");
    this.complaint.show(text);
    this.editor.blame(place, this.complaint.id);
    this.#ready(false);
  }

  // -- changing --------------------------------------------------------------------------------------------------

  async #save() {
    try {
      const text = this.editor.value.trim() === "" ? "{}" : this.editor.value;
      await putDocument(this.where, text);
      note(`The policy of ${this.queue} is in force.`);
      put(this.state, "Saved.");
      this.#show(await get(this.where));
      this.view.live.touch();
    } catch (error) {
      if (error.field) this.#blame(`${error.field}: ${error.message}`, locate(this.editor.value, error.field));
      else complain(error);
    }
  }

  #revert() {
    this.editor.value = this.kept;
    this.#check();
  }

  async #reset() {
    if (
      !(await confirm("Reset to defaults?", {
        text: `The policy of ${this.queue} is deleted; the defaults are in force at once.`,
        yes: "Reset",
        isDanger: true,
      }))
    )
      return;
    try {
      await del(this.where);
      this.#show(await get(this.where));
      note(`${this.queue} has the default policy.`);
      this.view.live.touch();
    } catch (error) {
      complain(error);
    }
  }
}

/** Whether this line of a printed policy differs from the default. */
function changed(lines, index, policy, defaults) {
  const found = /^( +)"((?:[^"\\]|\\.)*)": /.exec(lines[index]);
  if (found === null || defaults === undefined) return false;
  const steps = [JSON.parse(`"${found[2]}"`)];
  let depth = found[1].length;
  for (let above = index - 1; above >= 0 && depth > 2; above -= 1) {
    const outer = /^( +)"((?:[^"\\]|\\.)*)": [{[]$/.exec(lines[above]);
    if (outer !== null && outer[1].length < depth) {
      depth = outer[1].length;
      steps.unshift(JSON.parse(`"${outer[2]}"`));
    }
  }
  const follow = (value) => steps.reduce((inner, step) => inner?.[step], value);
  const [now, usual] = [follow(policy), follow(defaults)];
  return typeof now !== "object" && now !== usual;
}
