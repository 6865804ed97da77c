/* The server's status, refreshed once a second, or when an event reports a change.
 *
 * It decides when to request, and whether the server is reachable. Pages register listeners. */

import { Refused, askAgain, get, server, withQuery } from "./api.js";
import { follow } from "./events.js";
import { History } from "./history.js";

const TICK_MS = 1000;
const HIDDEN_MS = 10_000;
/* The period while the page is hidden. */
const QUIET_MS = 5000;
/* The period while no event comes: ages and rates change without events. */
const SOONEST_MS = 250;
/* The shortest time between two requests, */
const SHARE = 10;
/* and a multiple of the time of the last answer. */
const LONGEST_RETRY_MS = 5000;
const STATUS_PATIENCE_MS = 10_000;
const LARGE = 1000;
/* With more queues than this, only the rows that a page needs are requested. */

class Live {
  phase = "connecting";
  /** "connecting", "live", "lost" or "refused". */
  status = null;
  error = null;
  history = new History();
  #listeners = new Set();
  #watchers = new Set();
  #askedAt = 0;
  #receivedAt = 0;
  #lostAt = 0;
  #failures = 0;
  #isDirty = false;
  #isAsking = false;
  #timer = 0;
  #rest = SOONEST_MS;
  #stream = null;
  #needed = [];

  start() {
    document.addEventListener("visibilitychange", () => this.#visible(!document.hidden));
    addEventListener("pagehide", () => this.#visible(false));
    addEventListener("pageshow", (event) => event.persisted && this.#visible(true));
    addEventListener("online", () => this.poke());
    addEventListener("offline", () => this.poke());
    this.#round();
  }

  /** A hidden page follows no events: a browser has six connections to a server, shared by all tabs. */
  #visible(isVisible) {
    if (isVisible) this.poke();
    else this.#closeStream();
  }

  /** Call `watcher(live)` whenever the connection changes. */
  watch(watcher) {
    this.#watchers.add(watcher);
  }

  /** Call `listener(live)` whenever there are new numbers, and now if there are some, until `signal` aborts. */
  listen(listener, signal) {
    this.#listeners.add(listener);
    signal.addEventListener("abort", () => this.#listeners.delete(listener));
    if (this.status !== null) listener(this);
  }

  /** Request now. */
  poke() {
    askAgain();
    this.#plan(0);
  }

  /** The numbers have changed: request soon. */
  touch() {
    if (!this.#isDirty) this.#plan(this.#rest);
    this.#isDirty = true;
  }

  /** Per second, the mean of the last minute, as in `yirangmq status`; `queue` null: of all. The page computes it from its own
   * samples where the server sends no rates. */
  rate(queue, metric) {
    const rows = queue === null ? (this.isLarge ? [] : (this.status?.queues ?? [])) : [this.row(queue)];
    const known = rows.filter((row) => row?.rates);
    if (known.length === 0) return this.history.rate(queue, metric);
    return known.reduce((sum, { rates }) => sum + rates[`${metric}PerSec`], 0);
  }

  row(queue) {
    return this.status?.queues.find((row) => row.queue === queue) ?? null;
  }

  /** Whether `row` knows if this queue exists. */
  knows(queue) {
    return !this.isLarge || (this.status.asked?.includes(queue) ?? false);
  }

  /** There are too many queues for one answer; lists are requested page by page. */
  get isLarge() {
    return (this.status?.all.queues ?? 0) > LARGE;
  }

  /** Rows of these queues are needed until `signal` aborts, however many queues there are. */
  need(queues, signal) {
    this.#needed = queues;
    signal.addEventListener("abort", () => {
      if (this.#needed === queues) this.#needed = [];
    });
    if (this.isLarge) this.poke();
  }

  async #ask() {
    const options = { patience: STATUS_PATIENCE_MS };
    if (!this.isLarge) return get("status", options);
    const asked = this.#needed;
    const needed = asked.map((queue) => get(withQuery("status", { queue }), options));
    const [status, ...found] = await Promise.all([get(withQuery("status", { limit: 1 }), options), ...needed]);
    if (status.all.queues <= LARGE) return get("status", options);
    return { ...status, queues: found.flatMap((one) => one.queues.filter((row) => row.exists)), asked };
  }

  /** Milliseconds, by the server's clock. */
  now() {
    return Date.now() + server.ahead;
  }

  get secondsSilent() {
    return this.#receivedAt === 0 ? null : (Date.now() - this.#receivedAt) / 1000;
  }

  get secondsLost() {
    return (Date.now() - this.#lostAt) / 1000;
  }

  #plan(milliseconds) {
    clearTimeout(this.#timer);
    const since = Date.now() - this.#askedAt;
    this.#timer = setTimeout(() => this.#round(), Math.max(0, milliseconds - since));
  }

  /** Fill the charts with the samples that the server has kept. */
  async #remember() {
    try {
      this.history.fill(await get("trends"));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }

  async #round() {
    if (this.#isAsking) return;
    this.#isAsking = true;
    this.#askedAt = Date.now();
    this.#isDirty = false;
    try {
      const [status] = await Promise.all([this.#ask(), this.history.length === 0 ? this.#remember() : null]);
      this.#rest = Math.min(QUIET_MS, Math.max(SOONEST_MS, SHARE * (Date.now() - this.#askedAt)));
      this.#received(status);
    } catch (error) {
      this.#failed(error);
    } finally {
      this.#isAsking = false;
      this.#plan(this.#pause());
    }
  }

  #pause() {
    if (this.phase !== "live") return Math.min(LONGEST_RETRY_MS, TICK_MS * 2 ** Math.min(this.#failures - 1, 4));
    if (document.hidden) return HIDDEN_MS;
    if (this.#isDirty) return this.#rest;
    return this.#stream?.isOpen ? QUIET_MS : TICK_MS;
  }

  #received(status) {
    const wasLost = this.phase !== "live";
    this.phase = "live";
    this.error = null;
    this.status = status;
    this.#failures = 0;
    this.#receivedAt = Date.now();
    this.history.add(status.queues, this.now() / 1000, status.all);
    this.history.keep(status.queues);
    if (wasLost) this.#closeStream();
    if (!document.hidden)
      this.#stream ??= follow(
        "events",
        () => this.touch(),
        () => this.#plan(0),
      );
    this.#notify();
    for (const listener of [...this.#listeners]) listener(this);
  }

  #failed(error) {
    if (!(error instanceof Refused)) throw error;
    if (this.phase !== "lost" && this.phase !== "refused") this.#lostAt = Date.now();
    this.phase = error.isLost || error.status >= 500 ? "lost" : "refused";
    this.error = error;
    this.#failures += 1;
    this.#notify();
  }

  #notify() {
    for (const watcher of this.#watchers) watcher(this);
  }

  #closeStream() {
    this.#stream?.close();
    this.#stream = null;
  }
}

export const live = new Live();
