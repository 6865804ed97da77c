/* Light, dark, or as in the system. Runs before the first draw, so that the colours do not flash. */

"use strict";

{
  const KEY = "yirangmq.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const NAMES = { auto: "as in the system", light: "light", dark: "dark" };

  const read = () => {
    const kept = localStorage.getItem(KEY);
    return kept in NEXT ? kept : "auto";
  };

  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button !== null) {
      button.setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
      button.title = `Colours: ${NAMES[theme]}`;
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
