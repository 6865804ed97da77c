/* The progress of a long operation, with a button to stop it. */

import { h, mark, put } from "./dom.js";
import { count } from "./format.js";

export class Progress {
  constructor(title, total) {
    this.total = total;
    this.done = 0;
    this.isOver = false;
    this.bar = h("progress", { max: Math.max(1, total), value: 0, "aria-label": title });
    this.text = h("span", {});
    const stop = h("button", { type: "button", onclick: () => (this.isOver = true) }, "Stop");
    this.dialog = h(
      "dialog",
      { class: "progress", "aria-label": title },
      h("h2", {}, title),
      this.bar,
      h("div", { class: "bar-line" }, this.text, stop),
    );
    this.dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.isOver = true;
    });
    document.body.append(this.dialog);
    this.dialog.showModal();
    this.add(0);
  }

  add(more) {
    this.done += more;
    mark(this.bar, "value", this.done);
    put(this.text, `${count(this.done)} of ${count(this.total)}`);
  }

  close() {
    this.dialog.close();
    this.dialog.remove();
  }
}
