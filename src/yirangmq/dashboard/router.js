/* From the hash of the address to a page: `#/queues/mail/dead-letters?filter=…`.
 *
 * A page is a module in pages/ that exports
 *   route     "/queues/{queue}/policy": names and values
 *   title     (values) => text
 *   mount     (view) => anything; view: {root, values, query, signal, live, pages, setQuery}. `signal` aborts when the page
 *             is left. What has a method `turn(query)` is kept when only the query changes
 *   nav       {label, order}: a link at the top; optional
 *   tab       {label, order}: a tab of a queue's page; optional
 *   needs     "/v1/topics": shown where the server has this path; optional
 *   shows     (status) => whether its link is shown; optional
 *   badge     (status) => a number beside its link, where it is not 0; optional */

import { h } from "./dom.js";

export class Router {
  #leaving = null;
  #shown = null;

  constructor(pages, root, live) {
    this.pages = pages;
    this.root = root;
    this.live = live;
    this.changed = () => {};
  }

  start() {
    addEventListener("hashchange", () => this.#go(true));
    this.#go(false);
  }

  #go(isMove) {
    const { path, query } = place();
    const found = this.pages
      .map((page) => ({ page, values: match(page.route, path) }))
      .find(({ values }) => values !== null);
    if (isMove && this.#turned(found, path, query)) return;
    this.#leaving?.abort();
    this.#leaving = new AbortController();
    this.root.replaceChildren();
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    const page = found?.page ?? LOST;
    const values = found?.values ?? {};
    document.title = `${page.title(values)} · Yi-Rang MQ`;
    this.changed(page, values);
    this.#shown = { path, page, mounted: null };
    this.#shown.mounted = page.mount({
      root: this.root,
      values,
      query,
      signal: this.#leaving.signal,
      live: this.live,
      pages: this.pages,
      setQuery,
    });
    if (isMove) {
      scrollTo(0, 0);
      this.root.focus({ preventScroll: true });
    }
  }

  /** The page that is shown may be able to go on with another query by itself. */
  #turned(found, path, query) {
    if (this.#shown?.path !== path || this.#shown.page !== found?.page || !this.#shown.mounted?.turn) return false;
    this.#shown.mounted.turn(query);
    return true;
  }
}

/** Path and query of the address. */
export function place() {
  const hash = location.hash.startsWith("#/") ? location.hash.slice(1) : "/";
  const [path, query = ""] = hash.split(/\?(.*)/s);
  return { path, query: new URLSearchParams(query) };
}

/** The values of a template in a path, null where it does not fit. */
function match(template, path) {
  const [wanted, given] = [template.split("/"), path.split("/")];
  if (wanted.length !== given.length) return null;
  const values = {};
  for (const [index, part] of wanted.entries()) {
    if (part.startsWith("{")) {
      if (given[index] === "") return null;
      try {
        values[part.slice(1, -1)] = decodeURIComponent(given[index]);
      } catch {
        return null;
      }
    } else if (part !== given[index]) return null;
  }
  return values;
}

/** The address of a page: link("queues", name, "policy"). */
export function link(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/** Change the query of the address without leaving the page, so that the address can be shared. */
function setQuery(given) {
  const { path, query } = place();
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  history.replaceState(null, "", `#${path}${text ? `?${text}` : ""}`);
}

const LOST = {
  title: () => "Not found",
  mount(view) {
    view.root.append(
      h(
        "div",
        { class: "empty" },
        h("h1", {}, "This page does not exist"),
        h("p", {}, h("a", { href: "#/" }, "Go to the overview")),
      ),
    );
  },
};
