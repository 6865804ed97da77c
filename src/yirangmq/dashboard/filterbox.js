/* A field for the filter language, which marks the place of an error. */

import { h, mark, replace } from "./dom.js";

const FIELDS = [
  "reasonCode",
  "reasonMessage",
  "failedAt",
  "attempt",
  "consumerId",
  "messageId",
  "sourceQueue",
  "type",
  "traceId",
  "version",
  "priority",
  "publishedAt",
  "state",
  "attributes.NAME",
  "payload.NAME",
];

export class FilterBox {
  constructor(value, example, apply) {
    this.apply = apply;
    this.input = h("input", {
      type: "search",
      value,
      placeholder: example,
      "aria-label": "Filter",
      "data-search": true,
      spellcheck: "false",
      autocomplete: "off",
      autocapitalize: "off",
      class: "mono",
      maxlength: "10000",
      "aria-describedby": "filter-wrong",
    });
    this.wrong = h("div", { class: "filter-wrong", id: "filter-wrong", role: "alert", hidden: true });
    const submit = (event) => {
      event.preventDefault();
      this.apply(this.value);
    };
    this.input.addEventListener("search", () => this.input.value === "" && this.apply(""));
    this.node = h(
      "form",
      { class: "filter", onsubmit: submit },
      h(
        "div",
        { class: "filter-line" },
        h("span", { class: "search" }, this.input, h("kbd", { "aria-hidden": "true" }, "/")),
        h("button", {}, "Filter"),
      ),
      this.wrong,
      help(example),
    );
  }

  get value() {
    return this.input.value.trim();
  }

  /** Apply a filter, as if it had been typed. */
  set(text) {
    this.input.value = text;
    this.apply(text);
  }

  good() {
    this.wrong.hidden = true;
    mark(this.input, "aria-invalid", null);
  }

  /** The message of a `bad_filter`: what is wrong, the filter, and a caret under the place. */
  blame(message) {
    const [words, shown = "", caret = ""] = message.split("\n");
    const at = caret.indexOf("^") - 2;
    const text = shown.slice(2);
    const end = at + Math.max(1, /^[^\s()<>=!~]*/.exec(text.slice(at))[0].length);
    mark(this.input, "aria-invalid", "true");
    this.wrong.hidden = false;
    replace(
      this.wrong,
      h("p", {}, words),
      at < 0
        ? null
        : h(
            "pre",
            {},
            text.slice(0, at),
            h("mark", { class: "wrong-place" }, text.slice(at, end) || "␣"),
            text.slice(end),
          ),
    );
  }
}

function help(example) {
  return h(
    "details",
    { class: "filter-help" },
    h("summary", {}, "Filter syntax"),
    h(
      "p",
      {},
      "Compare fields with values, joined by ",
      code("and"),
      ", ",
      code("or"),
      ", ",
      code("not"),
      " and parentheses: ",
      code(example),
    ),
    h(
      "p",
      {},
      "Operators: ",
      ["=", "!=", "<", "<=", ">", ">=", "~"].map((sign) => [code(sign), " "]),
      "where ",
      code("~"),
      " means: contains.",
    ),
    h(
      "p",
      {},
      "Fields: ",
      FIELDS.map((field) => [code(field), " "]),
    ),
    h(
      "p",
      {},
      "Times are ",
      code("2026-01-14"),
      " or ",
      code("2026-01-14T09:30"),
      " (UTC). Text with spaces is quoted.",
    ),
  );
}

function code(text) {
  return h("code", {}, text);
}
