/* Purge of all messages of one state, page by page, so that other requests run in between. */

import { get, path, post, withQuery } from "./api.js";
import { complain, note, open } from "./dialogs.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { Progress } from "./progress.js";
import { DROPPABLE, STATES } from "./states.js";

const PER_STEP = 500;
const WAITING = ["ready", "delayed", "held"];

/** Ask for the state and for the name of the queue, then purge. */
export async function purge(view, queue, counts) {
  const chosen = await askState(queue, counts);
  if (chosen === null) return;
  const total = counts[chosen];
  const progress = new Progress(`Dropping ${plural(total, `${chosen} message`)}`, total);
  try {
    while (!progress.isOver && progress.done < total) {
      const gone = await drop(queue, chosen, Math.min(PER_STEP, total - progress.done));
      if (gone === 0) break;
      progress.add(gone);
      view.live.touch();
    }
    note(`${plural(progress.done, "message")} dropped.`);
  } catch (error) {
    complain(error);
  } finally {
    progress.close();
    view.live.poke();
  }
}

function askState(queue, counts) {
  const states = DROPPABLE.filter((state) => counts[state] > 0);
  return open(`Purge ${queue}`, (close) => {
    if (states.length === 0) return h("p", {}, "No message can be dropped: all are done.");
    const choices = states.map((state, index) =>
      h(
        "label",
        { class: "choice" },
        h("input", { type: "radio", name: "state", value: state, checked: index === 0 }),
        h("span", {}, h("b", {}, `${count(counts[state])} ${state}`), h("small", { class: "muted" }, STATES[state])),
      ),
    );
    const agree = h("button", { class: "danger", disabled: true }, "Purge");
    const word = h("input", {
      type: "text",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": `Type ${queue} to confirm`,
      autofocus: true,
    });
    word.addEventListener("input", () => (agree.disabled = word.value !== queue));
    const submit = (event) => {
      event.preventDefault();
      close(new FormData(event.target).get("state"));
    };
    return h(
      "form",
      { onsubmit: submit },
      h("p", {}, "All messages of one state are dropped permanently. Messages that arrive meanwhile stay."),
      h("fieldset", { class: "choose" }, h("legend", { class: "quiet" }, "State"), choices),
      h("label", { class: "field" }, h("span", {}, "Type ", h("code", {}, queue), " to confirm"), word),
      h("div", { class: "buttons" }, agree, h("button", { type: "button", onclick: () => close(null) }, "Cancel")),
    );
  });
}

/** One step; how many went. */
async function drop(queue, state, limit) {
  if (state === "dead" || state === "parked") {
    return (await post(path`queues/${queue}/dead-letters/purge`, { all: true, state, limit }, { patience: 0 })).count;
  }
  if (WAITING.includes(state)) return (await post(path`queues/${queue}/purge`, { all: true, state, limit }, { patience: 0 })).count;
  const page = await get(withQuery(path`queues/${queue}/messages`, { state, limit }));
  if (page.messages.length === 0) return 0;
  const ids = page.messages.map((message) => message.messageId);
  const answer = await post(path`queues/${queue}/drop`, { ids }, { allow: 409 });
  return ids.length - answer.failed;
}
