/* The consumers of a queue, and a warning if messages are ready and no consumer leases them. */

import { h, put, replace } from "./dom.js";
import { plural } from "./format.js";
import { live } from "./live.js";
import { link } from "./router.js";

/** Messages are ready, and no consumer reports, waits, holds a lease or took one within the last minute. On the standby node
 * of a pair nothing is leased, and nothing lacks a consumer. */
export function lacksConsumer(row) {
  if (live.status?.pair?.works === false) return false;
  const isTaken = row.consumers > 0 || row.leased > 0 || (row.rates?.leasedPerSec ?? 0) > 0;
  return row.consumers !== undefined && row.ready > 0 && !isTaken && !row.paused;
}

export function consumerBadge() {
  return h("span", { class: "badge bad", title: "Messages are ready, and no consumer leases them" }, "no consumer");
}

/** A line that names the queues without a consumer, the fullest first; hidden where there are none. `{node, show(rows)}`. */
export function lackingLine() {
  const node = h("p", { class: "health", role: "status", hidden: true });
  const most = 5;
  const show = (rows) => {
    const lacking = rows.filter(lacksConsumer).sort((one, other) => other.ready - one.ready);
    const names = lacking.map((row) => row.queue);
    node.hidden = names.length === 0;
    if (node.dataset.names === names.join()) return;
    node.dataset.names = names.join();
    const links = names.slice(0, most).map((name, index) => [index ? ", " : "", h("a", { href: link("queues", name) }, name)]);
    const rest = names.length > most ? ` and ${names.length - most} more` : "";
    replace(node, h("b", {}, `${plural(names.length, "queue has", "queues have")} ready messages and no consumer: `), links, rest, ".");
  };
  return { node, show };
}

/** The consumers of one queue in a line: `{node, show(row, consumers)}`; `consumers` are those that reported. */
export function consumersLine() {
  const text = h("span", {});
  const names = h("span", {});
  const node = h("p", { class: "consumers-line", hidden: true }, text, names);
  const show = (row, consumers) => {
    node.hidden = row?.consumers === undefined;
    if (node.hidden) return;
    const isLacking = lacksConsumer(row);
    node.classList.toggle("health", isLacking);
    const none = isLacking ? "Messages are ready, and no consumer leases them." : "No consumer reports or waits.";
    put(text, row.consumers > 0 ? `${plural(row.consumers, "consumer")}${consumers.length > 0 ? ": " : "."}` : none);
    const shown = consumers.map((one) => `${one.consumerId} ${one.state}`).join();
    if (names.dataset.shown === shown) return;
    names.dataset.shown = shown;
    replace(
      names,
      consumers.map((one, index) => [index ? ", " : "", h("a", { href: "#/consumers" }, one.consumerId), one.state === "running" ? "" : ` (${one.state})`]),
    );
  };
  return { node, show };
}
