/* What the server says, kept current: its status once a second, or when its events say that something happened.
 *
 * Knows: when to ask, whether the server is there. Does not know: pages. Whoever shows something listens. */

import { Refused, askAgain, get, server, withQuery } from "./api.js";
import { follow } from "./events.js";
import { History } from "./history.js";

const TICK_MS = 1000;
const HIDDEN_MS = 10_000;
/* Nobody looks: ask seldom. */
const QUIET_MS = 5000;
/* With events, and none came: ages and rates change all the same. */
const SOONEST_MS = 250;
/* Between two questions, however much happens, and at least */
const SHARE = 10;
/* times as long as the answer took. */
const LONGEST_RETRY_MS = 5000;
const STATUS_PATIENCE_MS = 10_000;
const LARGE = 1000;
/* With more queues than that, the status has no rows but those that a page asks for. */

class Live {
  phase = "connecting";
  /** "connecting", "live", "lost" or "refused". */
  status = null;
  error = null;
  history = new History();
  #listeners = new Set();
  #watchers = new Set();
  #askedAt = 0;
  #heardAt = 0;
  #lostAt = 0;
  #failures = 0;
  #isDirty = false;
  #isAsking = false;
  #timer = 0;
  #rest = SOONEST_MS;
  #stream = null;
  #needed = [];

  start() {
    document.addEventListener("visibilitychange", () => this.#seen(!document.hidden));
    addEventListener("pagehide", () => this.#seen(false));
    addEventListener("pageshow", (event) => event.persisted && this.#seen(true));
    addEventListener("online", () => this.poke());
    addEventListener("offline", () => this.poke());
    this.#round();
  }

  /** A page that nobody sees follows no events: a browser has six connections to a server, for all its tabs. */
  #seen(isSeen) {
    if (isSeen) this.poke();
    else this.#closeStream();
  }

  /** Call `watcher(live)` whenever the server comes or goes. */
  watch(watcher) {
    this.#watchers.add(watcher);
  }

  /** Call `listener(live)` whenever there are new numbers, and now if there are some, until `signal` aborts. */
  listen(listener, signal) {
    this.#listeners.add(listener);
    signal.addEventListener("abort", () => this.#listeners.delete(listener));
    if (this.status !== null) listener(this);
  }

  /** Ask now. */
  poke() {
    askAgain();
    this.#plan(0);
  }

  /** Something was done that the numbers will show. */
  touch() {
    if (!this.#isDirty) this.#plan(this.#rest);
    this.#isDirty = true;
  }

  row(queue) {
    return this.status?.queues.find((row) => row.queue === queue) ?? null;
  }

  /** Whether `row` would have this queue, if there is one. */
  knows(queue) {
    return !this.isLarge || (this.status.asked?.includes(queue) ?? false);
  }

  /** There are so many queues that lists of them are asked for a page at a time. */
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

  /** By the server's clock. */
  now() {
    return Date.now() + server.ahead;
  }

  get secondsSilent() {
    return this.#heardAt === 0 ? null : (Date.now() - this.#heardAt) / 1000;
  }

  get secondsLost() {
    return (Date.now() - this.#lostAt) / 1000;
  }

  #plan(milliseconds) {
    clearTimeout(this.#timer);
    const since = Date.now() - this.#askedAt;
    this.#timer = setTimeout(() => this.#round(), Math.max(0, milliseconds - since));
  }

  /** The charts begin where the server's memory does. */
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
      this.#took(status);
    } catch (error) {
      this.#missed(error);
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

  #took(status) {
    const wasLost = this.phase !== "live";
    this.phase = "live";
    this.error = null;
    this.status = status;
    this.#failures = 0;
    this.#heardAt = Date.now();
    this.history.add(status.queues, this.now() / 1000, status.all);
    this.history.keep(status.queues);
    if (wasLost) this.#closeStream();
    if (!document.hidden)
      this.#stream ??= follow(
        "events",
        () => this.touch(),
        () => this.#plan(0),
      );
    this.#tell();
    for (const listener of [...this.#listeners]) listener(this);
  }

  #missed(error) {
    if (!(error instanceof Refused)) throw error;
    if (this.phase !== "lost" && this.phase !== "refused") this.#lostAt = Date.now();
    this.phase = error.isLost || error.status >= 500 ? "lost" : "refused";
    this.error = error;
    this.#failures += 1;
    this.#tell();
  }

  #tell() {
    for (const watcher of this.#watchers) watcher(this);
  }

  #closeStream() {
    this.#stream?.close();
    this.#stream = null;
  }
}

export const live = new Live();
