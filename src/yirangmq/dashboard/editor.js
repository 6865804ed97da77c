/* A text field for JSON: numbered lines, colours, and a mark on the place that is wrong. */

import { h, mark, put, replace } from "./dom.js";
import { coloured } from "./jsontext.js";

export class Editor {
  constructor(label, { rows = 14, changed = () => {} } = {}) {
    this.wrong = null;
    this.area = h("textarea", {
      rows,
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      "aria-label": label,
      wrap: "off",
    });
    this.shade = h("pre", { class: "editor-shade", "aria-hidden": "true" });
    this.lines = h("pre", { class: "editor-lines", "aria-hidden": "true" });
    this.node = h("div", { class: "editor" }, this.lines, h("div", { class: "editor-text" }, this.shade, this.area));
    this.area.addEventListener("input", () => {
      this.wrong = null;
      this.#draw();
      changed(this.value);
    });
    this.area.addEventListener("scroll", () => this.#follow());
    this.area.addEventListener("keydown", (event) => this.#indent(event));
    this.#draw();
  }

  get value() {
    return this.area.value;
  }

  set value(text) {
    this.area.value = text;
    this.wrong = null;
    this.#draw();
  }

  /** Mark a place, `{start, end}`; null: nothing is wrong. */
  blame(place, describedBy = null) {
    this.wrong = place;
    mark(this.area, "aria-invalid", describedBy === null ? null : "true");
    mark(this.area, "aria-describedby", describedBy);
    this.#draw();
  }

  #draw() {
    const text = this.area.value;
    const count = text.split("\n").length;
    const wrongLine = this.wrong === null ? 0 : text.slice(0, this.wrong.start).split("\n").length;
    if (this.lines.childElementCount !== count || this.lines.dataset.wrong !== String(wrongLine)) {
      this.lines.dataset.wrong = wrongLine;
      replace(
        this.lines,
        Array.from({ length: count }, (_, index) =>
          h("span", { class: index + 1 === wrongLine ? "wrong-line" : "" }, `${index + 1}\n`),
        ),
      );
    }
    replace(this.shade, coloured(text, this.wrong), "\n");
    this.#follow();
  }

  #follow() {
    this.shade.style.transform = `translate(${-this.area.scrollLeft}px, ${-this.area.scrollTop}px)`;
    this.lines.scrollTop = this.area.scrollTop;
  }

  /** Enter keeps the indent. Tab stays what it is: the way to the next field. */
  #indent(event) {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const before = this.area.value.slice(0, this.area.selectionStart);
    const indent = /[ ]*$/.exec(/(^|\n)([ ]*)[^\n]*$/.exec(before)[2])[0];
    const deeper = /[{[]\s*$/.test(before) ? "  " : "";
    document.execCommand("insertText", false, `\n${indent}${deeper}`);
  }
}

/** A line of text under something that is wrong. */
export class Complaint {
  static #count = 0;

  constructor() {
    this.id = `wrong-${(Complaint.#count += 1)}`;
    this.node = h("p", { class: "wrong", id: this.id, role: "alert", hidden: true });
  }

  show(text) {
    put(this.node, text ?? "");
    this.node.hidden = !text;
  }
}
