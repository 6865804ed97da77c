/* Facts of the server, and its health. */

import { Refused, get } from "./api.js";
import { h, mark, put, replace } from "./dom.js";
import { span } from "./format.js";

const HEALTH_MS = 10_000;

/** A line of facts: `{node, show(status)}`. */
export function facts() {
  const node = h("dl", { class: "facts" });
  const show = (status) => {
    const facts = {
      version: status.server?.replace("yirangmq ", ""),
      node: status.node,
      store: status.store,
      durability: status.durability,
      uptime: status.uptimeSec === undefined ? undefined : span(Math.floor(status.uptimeSec)),
      connections: status.connections,
    };
    const given = Object.entries(facts).filter(([, value]) => value !== undefined && value !== "");
    if (node.children.length !== given.length) {
      replace(
        node,
        given.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))),
      );
    }
    given.forEach(([, value], index) => put(node.children[index].lastChild, value));
  };
  return { node, show };
}

/** The reasons why the server is unhealthy, hidden while it is healthy; requested until `signal` aborts. */
export function health(signal) {
  const node = h("div", { class: "health", hidden: true });
  watch(node, signal);
  return node;
}

async function watch(node, signal) {
  while (!signal.aborted) {
    try {
      showHealth(node, await get("health", { signal, allow: 503 }));
    } catch (error) {
      if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, HEALTH_MS));
  }
}

function showHealth(node, { status, reasons }) {
  node.hidden = status === "ok";
  mark(node, "data-kind", status);
  const title = status === "fail" ? "The server is failing: " : "The server is degraded: ";
  replace(node, h("b", {}, title), reasons.map((reason) => reason.text).join("; "));
}
