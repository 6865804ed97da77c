/* Elements from plain values. Data goes in as text and as attributes, never as markup. */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "indeterminate"]);

/** An element: `h("a", {href: "#/", onclick: go}, "text", [more, nodes])`. What is null or false is left out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for drawings. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** New text for a node, if it is new. */
export function put(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** An attribute, or none where the value is null or false. */
export function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** The children of a node, all anew. */
export function replace(node, ...children) {
  node.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A list whose rows stay the same nodes as long as their key is there, so that focus and selection stay too.
 * `make(item)` gives `{node, update(item)}`. */
export class Rows {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.rows = new Map();
  }

  show(items, keyOf) {
    const focused = this.parent.contains(document.activeElement) ? document.activeElement : null;
    const seen = new Set();
    let at = this.parent.firstChild;
    for (const item of items) {
      const key = keyOf(item);
      seen.add(key);
      let row = this.rows.get(key);
      if (row === undefined) this.rows.set(key, (row = this.make(item)));
      row.update(item);
      if (row.node === at) at = at.nextSibling;
      else this.parent.insertBefore(row.node, at);
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.node.remove();
        this.rows.delete(key);
      }
    }
    if (focused !== null && focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
  }
}

/** Arrow keys, Home and End go from one focusable row to the next. `selector` finds what takes the focus. */
export function walkable(parent, selector) {
  parent.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    const spots = [...parent.querySelectorAll(selector)];
    const here = spots.indexOf(event.target.closest(selector));
    if (here < 0) return;
    event.preventDefault();
    spots[Math.min(spots.length - 1, Math.max(0, here + steps[event.key]))].focus();
  });
}
