/* Dialogs and notifications. A dialog is the browser's own: it keeps the focus, and Escape closes it. */

import { h } from "./dom.js";

const NOTE_MS = 6000;

/** Open a dialog around `content`; the result is the argument of `close(value)`, or null if the dialog was dismissed. */
export function open(title, content, { kind = "" } = {}) {
  return new Promise((resolve) => {
    let answer = null;
    const heading = h("h2", { id: "dialog-title" }, title);
    const dialog = h("dialog", { class: kind, "aria-labelledby": "dialog-title", tabindex: "-1" });
    const close = (value) => {
      answer = value;
      dialog.close();
    };
    const leave = h(
      "button",
      { type: "button", class: "icon-button close", "aria-label": "Close", onclick: () => close(null) },
      "✕",
    );
    dialog.append(h("div", { class: "dialog-head" }, heading, leave), content(close, dialog));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) close(null);
    });
    if (dialog.querySelector("[autofocus]") === null) dialog.setAttribute("autofocus", "");
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Yes or no. With `typed` the word must be typed before yes is possible. */
export function confirm(title, { text, yes, typed = null, isDanger = false }) {
  return open(title, (close) => {
    const agree = h(
      "button",
      { class: isDanger ? "danger" : "primary", disabled: typed !== null, autofocus: typed === null },
      yes,
    );
    const word = h("input", {
      type: "text",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": `Type ${typed} to confirm`,
      autofocus: true,
    });
    word.addEventListener("input", () => (agree.disabled = word.value !== typed));
    const submit = (event) => {
      event.preventDefault();
      close(true);
    };
    return h(
      "form",
      { onsubmit: submit },
      h("p", {}, text),
      typed === null
        ? null
        : h("label", { class: "field" }, h("span", {}, "Type ", h("code", {}, typed), " to confirm"), word),
      h("div", { class: "buttons" }, agree, h("button", { type: "button", onclick: () => close(null) }, "Cancel")),
    );
  });
}

/** The bearer token of this server, or null. It is kept until the tab is closed. */
export function askToken(wasWrong) {
  return open("This server requires a token", (close) => {
    const input = h("input", {
      type: "password",
      autocomplete: "off",
      required: true,
      "aria-label": "Token",
      name: "token",
      autofocus: true,
    });
    const submit = (event) => {
      event.preventDefault();
      close(input.value.trim());
    };
    return h(
      "form",
      { onsubmit: submit },
      h(
        "p",
        {},
        wasWrong ? "The server did not accept the token." : "It is kept until this tab is closed.",
      ),
      h("label", { class: "field" }, h("span", {}, "Token"), input),
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Use this token")),
    );
  });
}

/** A notification that disappears after some seconds. */
export function note(text, kind = "good") {
  const line = h("p", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(line);
  setTimeout(() => line.remove(), NOTE_MS);
}

/** Notify of an error. */
export function complain(error) {
  if (error.name === "AbortError") return;
  note(error.message === "" ? String(error) : error.message, "bad");
}
