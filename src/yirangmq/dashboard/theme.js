/* Light, dark, or as the system has it. Runs before anything is drawn, so that nothing flashes. */

"use strict";

{
  const KEY = "yirangmq.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const SAID = { auto: "as the system has them", light: "light", dark: "dark" };

  const read = () => {
    const kept = localStorage.getItem(KEY);
    return kept in NEXT ? kept : "auto";
  };

  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button !== null) {
      button.setAttribute("aria-label", `Colours: ${SAID[theme]}`);
      button.title = `Colours: ${SAID[theme]}`;
    }
  };

  apply(read());
  addEventListener("DOMContentLoaded", () => {
    apply(read());
    document.getElementById("theme").addEventListener("click", () => {
      const theme = NEXT[read()];
      localStorage.setItem(KEY, theme);
      apply(theme);
    });
  });
}
