/* A payload's bytes, as what they are: JSON, text, or bytes. Shown, copied, saved; never run. */

import { note } from "./dialogs.js";
import { h, mark, replace } from "./dom.js";
import { bytes as size, count } from "./format.js";
import { coloured, indented, isJson } from "./jsontext.js";

const MOST_TEXT = 200_000;
const MOST_HEX = 16_384;
const VIEWS = { pretty: "JSON", text: "Text", hex: "Hex" };

export class PayloadView {
  constructor(name, { bytes, type }) {
    this.name = name;
    this.bytes = bytes;
    this.type = type.split(";")[0];
    this.text = decoded(bytes);
    this.isJson = this.text !== null && isJson(this.text);
    this.view = this.isJson ? "pretty" : this.text === null ? "hex" : "text";
    this.isWhole = false;
    this.shown = h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" });
    this.more = h("button", { type: "button", class: "small", hidden: true, onclick: () => this.#showAll() });
    this.choices = h("span", { class: "choices", role: "group", "aria-label": "Show as" });
    const head = h(
      "div",
      { class: "bar-line" },
      h("h3", {}, "Payload"),
      h("span", { class: "muted" }, `${size(bytes.length)}${this.type ? ` · ${this.type}` : ""}`),
      this.choices,
      h("button", { type: "button", class: "small", onclick: () => this.#copy() }, "Copy"),
      h("button", { type: "button", class: "small", onclick: () => this.#save() }, "Download"),
    );
    this.node = h("section", { class: "payload-view" }, head, this.shown, this.more);
    this.#drawChoices();
    this.#draw();
  }

  #drawChoices() {
    const possible = Object.keys(VIEWS).filter((view) =>
      view === "pretty" ? this.isJson : view === "text" ? this.text !== null : true,
    );
    replace(
      this.choices,
      possible.map((view) => {
        const button = h(
          "button",
          { type: "button", class: "small", "aria-pressed": String(view === this.view) },
          VIEWS[view],
        );
        button.addEventListener("click", () => {
          this.view = view;
          this.isWhole = false;
          for (const other of this.choices.children) mark(other, "aria-pressed", String(other === button));
          this.#draw();
        });
        return button;
      }),
    );
  }

  #draw() {
    const { text, isCut } = this.#text();
    replace(this.shown, this.view === "pretty" && !isCut ? coloured(text) : text);
    this.more.hidden = !isCut;
    this.more.textContent = `Show all ${size(this.bytes.length)}`;
    if (this.bytes.length === 0) replace(this.shown, h("span", { class: "muted" }, "empty"));
  }

  #text() {
    if (this.view === "hex") {
      const isCut = this.bytes.length > MOST_HEX && !this.isWhole;
      return { text: hex(isCut ? this.bytes.subarray(0, MOST_HEX) : this.bytes), isCut };
    }
    const isCut = this.text.length > MOST_TEXT && !this.isWhole;
    const text = isCut ? this.text.slice(0, MOST_TEXT) : this.text;
    return { text: this.view === "pretty" && !isCut ? indented(text) : text, isCut };
  }

  #showAll() {
    this.isWhole = true;
    this.#draw();
  }

  async #copy() {
    await copy(this.view === "hex" ? hex(this.bytes) : this.text);
    note(`The payload is copied, ${count(this.bytes.length)} bytes.`);
  }

  #save() {
    const ending = this.isJson ? ".json" : this.text === null ? ".bin" : ".txt";
    const url = URL.createObjectURL(new Blob([this.bytes], { type: "application/octet-stream" }));
    h("a", { href: url, download: `${this.name}${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }
}

/** To the clipboard, also where the page came without TLS. */
export async function copy(text) {
  if (navigator.clipboard !== undefined) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = h("textarea", { value: text, class: "quiet" });
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** UTF-8 that people can read, or null. */
export function decoded(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return /[\0-\x08\x0e-\x1f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** Sixteen bytes a line: where, which, and what they are as letters. */
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = bytes.subarray(at, at + 16);
    const codes = Array.from(part, (byte) => byte.toString(16).padStart(2, "0"));
    const left = `${codes.slice(0, 8).join(" ")}  ${codes.slice(8).join(" ")}`.padEnd(48);
    const letters = Array.from(part, (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${letters}`);
  }
  return lines.join("\n");
}
