/* A table described by its columns. On a phone its rows are cards. */

import { Rows, h, mark, put } from "./dom.js";

/** `label` names the table for screen readers. `columns`: `{name, of(item) → text or node, isNumber, isHead, isWhole (one line), isLong (a sentence). A column without a name has buttons.
 * kind(item) → class of a badge}`. `{node, show(items, keyOf)}`. */
export function sheet(columns, kind, label) {
  const body = h("tbody", {});
  const rows = new Rows(body, () => row(columns));
  const head = columns.map(({ name, isNumber }) =>
    h("th", { scope: "col", class: isNumber ? "number" : "" }, name === "" ? h("span", { class: "quiet" }, "actions") : name),
  );
  const node = h("table", { class: `cards ${kind}`, "aria-label": label, hidden: true }, h("thead", {}, h("tr", {}, head)), body);
  return {
    node,
    body,
    show(items, keyOf) {
      node.hidden = items.length === 0;
      rows.show(items, keyOf);
    },
  };
}

function row(columns) {
  const spots = columns.map(({ kind }) => h("span", { class: kind ? "badge" : "" }));
  const cells = columns.map(({ name, isNumber, isHead, isWhole, isLong }, index) =>
    isHead
      ? h("th", { scope: "row" }, spots[index])
      : h("td", { "data-label": name || null, class: isNumber ? "number" : isWhole ? "nowrap" : isLong ? "whole" : "" }, spots[index]),
  );
  return {
    node: h("tr", {}, cells),
    update(item) {
      columns.forEach(({ of, kind, isNumber }, index) => {
        const shown = of(item);
        if (shown instanceof Node) {
          if (!spots[index].firstChild?.isEqualNode(shown)) spots[index].replaceChildren(shown);
        } else put(spots[index], shown);
        if (kind) mark(spots[index], "class", `badge ${kind(item)}`);
        if (isNumber) mark(cells[index], "data-zero", shown === "0");
      });
    },
  };
}
