/* Redrive, quarantine and purge of dead letters: a dry run first, then the move, step by step. */

import { path, post } from "./api.js";
import { complain, note, open } from "./dialogs.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { Progress } from "./progress.js";

const STEPS = 20;
const SMALLEST_STEP = 200;

export const MOVES = {
  redrive: {
    name: "Redrive",
    would: "would become ready again, with their attempts reset",
    doing: "Redriving",
    done: "redriven",
  },
  quarantine: {
    name: "Quarantine",
    would: "would be parked: parked messages do not expire, and change only by a command that names them",
    doing: "Quarantining",
    done: "quarantined",
  },
  purge: { name: "Purge", would: "would be dropped permanently", doing: "Purging", done: "purged", isDanger: true },
};

/** `which`: `{ids}`, `{filter, state}` or `{all, state}`. True if anything moved. */
export async function move(view, queue, verb, which) {
  const where = path`queues/${queue}/dead-letters/${verb}`;
  const body = verb === "quarantine" ? without(which, "state") : which;
  let found;
  try {
    found = await post(where, { ...body, dryRun: true }, { signal: view.signal, patience: 0 });
  } catch (error) {
    if (error.code === "bad_filter") throw error;
    complain(error);
    return false;
  }
  const most = await askHowMany(queue, MOVES[verb], found);
  return most === null ? false : run(view, where, MOVES[verb], body, most);
}

function without(values, name) {
  return Object.fromEntries(Object.entries(values).filter(([other]) => other !== name));
}

/** Show the dry run and ask for a confirmation: the largest number to move, or null. */
function askHowMany(queue, { name, would, isDanger }, { count: total, ids }) {
  return open(`${name}: dry run`, (close) => {
    if (total === 0) {
      return h(
        "div",
        {},
        h("p", { class: "dry-run" }, "No dead letter matches; nothing would change."),
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", autofocus: true, onclick: () => close(null) }, "Close"),
        ),
      );
    }
    const most = h("input", { type: "number", min: 1, max: total, value: String(total), "aria-label": "At most" });
    const agree = h("button", { class: isDanger ? "danger" : "primary", autofocus: true }, name);
    const submit = (event) => {
      event.preventDefault();
      close(Math.min(total, Math.max(1, Number(most.value) || total)));
    };
    const rest = total > ids.length ? `, and ${count(total - ids.length)} more` : "";
    return h(
      "form",
      { onsubmit: submit },
      h("p", { class: "dry-run" }, h("b", {}, plural(total, "message")), ` of ${queue} ${would}.`),
      h("p", { class: "muted ids" }, ids.join(", "), rest),
      h("label", { class: "field" }, h("span", {}, "At most, the oldest first"), most),
      h("div", { class: "buttons" }, agree, h("button", { type: "button", onclick: () => close(null) }, "Cancel")),
    );
  });
}

/** In steps of one call each: it can be watched, and stopped. */
async function run(view, where, { doing, done }, body, total) {
  const progress = new Progress(`${doing} ${plural(total, "message")}`, total);
  const step = Math.max(SMALLEST_STEP, Math.ceil(total / STEPS));
  try {
    while (!progress.isOver && progress.done < total) {
      const limit = Math.min(step, total - progress.done);
      const moved = (await post(where, { ...body, limit }, { patience: 0 })).count;
      if (moved === 0) break;
      progress.add(moved);
      view.live.touch();
    }
    note(`${plural(progress.done, "message")} ${done}.`);
  } catch (error) {
    complain(error);
  } finally {
    progress.close();
    view.live.poke();
  }
  return progress.done > 0;
}
