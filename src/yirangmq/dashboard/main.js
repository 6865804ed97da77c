/* The frame around the pages: the server's name, the state of the connection, the navigation. */

import { Refused, forgetPaths, has } from "./api.js";
import { h, mark, put } from "./dom.js";
import { span } from "./format.js";
import { live } from "./live.js";
import pages from "./pages.js";
import { Router } from "./router.js";

const BACK_MS = 4000;
const OLD_SECONDS = 15;
/* The age of the numbers is shown when they are older than this. */
const $ = (id) => document.getElementById(id);

const router = new Router(pages, $("content"), live);
const links = new Map();
let wasLost = false;

function drawNav() {
  const shown = pages.filter((page) => page.nav).sort((one, other) => one.nav.order - other.nav.order);
  for (const page of shown) {
    const more = page.badge ? h("span", { class: "badge bad", hidden: true }) : null;
    const node = h("a", { href: `#${page.route}`, hidden: Boolean(page.needs ?? page.shows) }, page.nav.label, more);
    links.set(page, node);
    $("nav").append(node);
  }
}

/** Show the links of pages whose paths this server has. */
async function revealNav() {
  for (const [page, node] of links) {
    if (!page.needs) continue;
    try {
      node.hidden = !(await has(page.needs));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }
}

router.changed = (page) => {
  for (const [other, node] of links) {
    const isQueue = page.route === "/publish" || page.route?.startsWith("/queues/");
    const isInside = other.route === "/" ? isQueue : page.route?.startsWith(`${other.route}/`);
    mark(node, "aria-current", other === page || isInside ? "page" : null);
  }
};

function showPulse() {
  const isOld = live.phase === "live" && live.secondsSilent > OLD_SECONDS;
  const words = {
    connecting: "connecting",
    live: isOld ? `${span(Math.floor(live.secondsSilent))} old` : "live",
    lost: "no connection",
    refused: "refused",
  };
  mark($("pulse"), "data-phase", isOld ? "old" : live.phase);
  put($("pulse-text"), words[live.phase]);
  document.body.classList.toggle("is-stale", live.phase === "lost" || live.phase === "refused");
}

function showBanner() {
  const banner = $("banner");
  if (live.phase === "lost" || live.phase === "refused") {
    const isLost = live.phase === "lost";
    wasLost = true;
    banner.dataset.kind = "bad";
    banner.hidden = false;
    if (banner.dataset.why !== live.error.message) {
      banner.dataset.why = live.error.message;
      const again = h("button", { type: "button", onclick: () => live.poke() }, isLost ? "Try now" : "Enter a token");
      banner.replaceChildren(
        h("span", { role: "alert" }, `${isLost ? "Connection lost" : "Refused"}: ${live.error.message}.`),
        h("span", { class: "since" }),
        again,
      );
    }
    put(banner.querySelector(".since"), isLost ? `The numbers are ${span(Math.floor(live.secondsLost))} old.` : "");
  } else if (live.phase === "live" && wasLost) {
    wasLost = false;
    banner.dataset.kind = "good";
    delete banner.dataset.why;
    banner.replaceChildren(
      h("span", { role: "status" }, `Connected again after ${span(Math.max(1, Math.floor(live.secondsLost)))}.`),
    );
    setTimeout(() => (banner.hidden = live.phase === "live"), BACK_MS);
    forgetPaths();
    revealNav();
  }
}

/** Show or hide the links at the top, and their badges. */
function showNav(status) {
  for (const [page, node] of links) {
    if (page.shows) node.hidden = !page.shows(status);
    if (!page.badge) continue;
    const number = page.badge(status);
    put(node.lastChild, number);
    node.lastChild.hidden = number === 0;
  }
}

function show() {
  showPulse();
  showBanner();
  const node = live.status?.node ?? "";
  put($("node"), node);
  if (live.status !== null) showNav(live.status);
}

function listenForKeys() {
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const search = document.querySelector("[data-search]");
      if (search !== null) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    } else if (event.key === "Escape" && isTyping?.matches("[data-search]")) isTyping.blur();
  });
  $("skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("content").focus();
  });
}

drawNav();
listenForKeys();
live.watch(show);
setInterval(show, 1000);
router.start();
live.start();
revealNav();
