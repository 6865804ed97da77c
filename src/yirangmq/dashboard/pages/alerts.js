/* Open and closed alerts, their sinks and their rules. */

import { Refused, get, path, post } from "../api.js";
import { complain, note, open } from "../dialogs.js";
import { h, put } from "../dom.js";
import { count, decimal, moment } from "../format.js";
import { link } from "../router.js";
import { sheet } from "../sheet.js";

const EVERY_MS = 2000;
const KINDS = { CRITICAL: "bad", WARNING: "paused", INFO: "" };
const NAME = "yirangmq.name";

const WHAT = {
  name: "alert",
  isHead: true,
  of: (row) => h("span", {}, row.text, h("span", { class: "muted below" }, row.rule)),
};
const LEVEL = { name: "level", of: (row) => row.level, kind: (row) => KINDS[row.level] };
const ABOUT = {
  name: "about",
  of: (row) => subject(row),
};
const SINCE = { name: "opened", isWhole: true, of: (row) => moment(row.openedAt) };
const CARED = {
  name: "acknowledged",
  of: (row) => (row.acknowledgedAt === null ? "–" : [row.acknowledgedBy ?? "yes", row.note].filter(Boolean).join(": ")),
};
const OVER = [WHAT, LEVEL, ABOUT, SINCE, { name: "closed", isWhole: true, of: (row) => moment(row.closedAt) }, CARED];
const SINKS = [
  { name: "sink", isHead: true, of: (row) => row.sink },
  { name: "kind", of: (row) => row.kind },
  { name: "from level", of: (row) => row.level, kind: (row) => KINDS[row.level] },
  { name: "sent", isNumber: true, of: (row) => count(row.sent) },
  { name: "failed", isNumber: true, of: (row) => count(row.failed) },
  { name: "lost", isNumber: true, of: (row) => count(row.lost) },
  { name: "pending", isNumber: true, of: (row) => count(row.pending) },
  { name: "last error", isLong: true, of: (row) => row.lastError ?? "–" },
];
const RULES = [
  { name: "rule", isHead: true, of: (row) => row.rule },
  { name: "state", of: (row) => (row.enabled ? "on" : "off"), kind: (row) => (row.enabled ? "good" : "") },
  { name: "limit", of: (row) => limitOf(row) },
  { name: "level", of: (row) => row.level },
  { name: "open while", isLong: true, of: (row) => coded(row.about) },
];

const SINGULAR = { seconds: "second", messages: "message", clients: "client", switches: "switch" };

/** A limit with its unit: "1 message in the window", "0.5 seconds". */
function limitOf({ limit, unit }) {
  if (limit === null) return "–";
  const [noun, ...rest] = (unit ?? "").split(" ");
  return [decimal(limit), limit === 1 ? (SINGULAR[noun] ?? noun) : noun, ...rest].join(" ");
}

/** Text between backticks is code. */
function coded(text) {
  return h("span", {}, text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part)));
}

/** The queue, as a link; the subject of a takeover is a switch of the pair. */
function subject({ rule, subject }) {
  if (subject === null) return "–";
  return h("a", { href: rule === "takeover" ? "#/pair" : link("queues", subject) }, subject);
}

export default {
  route: "/alerts",
  title: () => "Alerts",
  nav: { label: "Alerts", order: 30 },
  needs: "/v1/alerts",
  /** The number of open alerts without an acknowledgement, for the link at the top. */
  badge: (status) => status.alerts?.unacknowledged ?? 0,
  mount: (view) => new AlertsPage(view),
};

class AlertsPage {
  constructor(view) {
    this.view = view;
    this.open = sheet(this.#columns(), "alerts", "Open alerts");
    this.over = sheet(OVER, "alerts", "Closed alerts");
    this.sinks = sheet(SINKS, "alerts sinks", "Sinks");
    this.rules = sheet(RULES, "alerts rules", "Rules");
    this.well = h("div", { class: "empty", hidden: true }, h("h3", {}, "No open alerts"));
    this.none = h("p", { class: "muted", hidden: true }, "No closed alerts.");
    this.off = h("p", { class: "muted", hidden: true }, "Alerts are off: the setting alerts.enabled is false.");
    const test = h("button", { type: "button", class: "small", onclick: () => this.#test() }, "Send a test notice");
    view.root.append(
      h("h1", {}, "Alerts"),
      this.off,
      this.open.node,
      this.well,
      h("h2", {}, "Closed"),
      this.over.node,
      this.none,
      h("div", { class: "bar-line" }, h("h2", {}, "Sinks"), test),
      this.sinks.node,
      h("h2", {}, "Rules"),
      this.rules.node,
    );
    this.#watch();
    this.#showRules();
  }

  #columns() {
    const care = (row) =>
      row.acknowledgedAt === null
        ? h("button", { type: "button", class: "small", "data-ack": row.id, "aria-label": `Acknowledge: ${row.text}`, onclick: () => this.#care(row) }, "Acknowledge")
        : "";
    const state = { name: "state", of: (row) => (row.withheld ? `${row.state}, not sent yet` : row.state) };
    return [WHAT, LEVEL, state, ABOUT, SINCE, CARED, { name: "", of: care }];
  }

  async #watch() {
    const { signal, live } = this.view;
    while (!signal.aborted) {
      await this.#ask();
      await new Promise((resolve) => setTimeout(resolve, live.phase === "live" ? EVERY_MS : EVERY_MS * 3));
    }
  }

  async #ask() {
    try {
      const { enabled, alerts, sinks } = await get("alerts?state=all", { signal: this.view.signal });
      const [open, over] = [alerts.filter((one) => one.closedAt === null), alerts.filter((one) => one.closedAt !== null)];
      this.open.show(open, (one) => one.id);
      this.over.show(over, (one) => one.id);
      this.sinks.show(sinks, (one) => one.sink);
      this.well.hidden = open.length > 0;
      this.none.hidden = over.length > 0;
      this.off.hidden = enabled;
    } catch (error) {
      if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
    }
  }

  async #showRules() {
    try {
      const { rules } = await get("alert-rules", { signal: this.view.signal });
      this.rules.show(rules, (one) => one.rule);
    } catch (error) {
      if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
    }
  }

  async #care(row) {
    const answer = await askName(row);
    if (answer === null) return;
    try {
      await post(path`alerts/${row.id}/ack`, answer);
      note(`Acknowledged: ${row.text}`);
      this.view.live.touch();
      await this.#ask();
    } catch (error) {
      complain(error);
    }
  }

  async #test() {
    try {
      const { sinks } = await post("alerts", {});
      for (const { sink, ok, error } of sinks) note(ok ? `${sink} accepted the notice.` : `${sink}: ${error}`, ok ? "good" : "bad");
      await this.#ask();
    } catch (error) {
      complain(error);
    }
  }
}

/** `{by, note}`, or null. */
function askName(row) {
  return open("Acknowledge", (close) => {
    const by = h("input", { type: "text", name: "by", maxlength: "100", value: localStorage.getItem(NAME) ?? "", autofocus: true });
    const text = h("input", { type: "text", name: "note", maxlength: "500", autocomplete: "off" });
    const submit = (event) => {
      event.preventDefault();
      localStorage.setItem(NAME, by.value.trim());
      close({ by: by.value.trim(), note: text.value.trim() });
    };
    const about = h("p", {});
    put(about, `${row.text}. No further reminders are sent unless its level rises.`);
    return h(
      "form",
      { onsubmit: submit },
      about,
      h("label", { class: "field" }, h("span", {}, "Your name"), by),
      h("label", { class: "field" }, h("span", {}, "Note"), text),
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Acknowledge")),
    );
  });
}
