"""The dashboard of a running server in a real browser, and its API beside it, as another client would use it."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.chromium import Browser, Element
from tests.support.wait import PATIENCE

EVIL = '<img src=x onerror="window.hit=1"><script>window.hit=1</script><svg onload=window.hit=1>"\'`javascript:alert(1)'
LOST = (
    r"ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_CONNECTION_CLOSED|ERR_SOCKET_NOT_CONNECTED"
    r"|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED"
)
"""What a browser itself says of a server that is gone."""


class Api:
    """One client of /v1, on a connection that it keeps."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            self._line.request(method, f"/v1/{path}", data, self._headers)
            answer = self._line.getresponse()
        except (ConnectionError, http.client.HTTPException):  # the server went, and is there again
            self._line.close()
            self._line.request(method, f"/v1/{path}", data, self._headers)
            answer = self._line.getresponse()
        told = answer.read()
        assert answer.status == 200, f"{method} {path}: {answer.status} {told.decode()}"
        return json.loads(told)

    def close(self) -> None:
        self._line.close()

    def publish(self, queue: str, *payloads: Any) -> list[str]:
        receipts = self("POST", f"queues/{queue}/messages", list(payloads))["messages"]
        return [receipt["messageId"] for receipt in receipts]

    def lease(self, queue: str, most: int = 1, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self("POST", f"queues/{queue}/lease", {"max": most, **more})["messages"]
        return found

    def bury(self, queue: str, most: int, reason: str = "REJECTED", text: str = "") -> None:
        """Take so many, and say never to try them again, or so often that they are given up."""
        leases = [one["lease"]["leaseId"] for one in self.lease(queue, most)]
        self("POST", f"queues/{queue}/nack", {"leases": leases, "reason": reason, "text": text})

    def counts(self, queue: str) -> dict[str, int]:
        found: dict[str, int] = self("GET", f"queues/{queue}")["counts"]
        return found


class Page:
    """The dashboard of one server."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url
        self.api = Api(url)
        self._forgiven: list[str] = []

    def open(self, where: str = "/") -> "Page":
        """From nothing: no token, no settings, nothing remembered."""
        self.browser.open("about:blank")
        self.browser.open(f"{self.url}/#{where}")
        self.browser.until("return document.readyState === 'complete'")
        return self

    def live(self) -> "Page":
        self.browser.find('#pulse[data-phase="live"]')
        return self

    def go(self, where: str) -> "Page":
        self.browser.script("location.hash = arguments[0]", where)
        return self

    def find(self, selector: str, text: str = "") -> Element:
        return self.browser.find(selector, text)

    def click(self, selector: str, text: str = "") -> None:
        self.find(selector, text).click()

    def gone(self, selector: str, text: str = "") -> None:
        self.browser.gone(selector, text)

    def toast(self, text: str) -> None:
        self.find(".toast", text)

    def count(self, state: str, wanted: int) -> None:
        """Wait until the box of a state says so."""
        self.browser.until(
            "return document.querySelector(`.state-box[data-state=${arguments[0]}] b`)?.textContent === arguments[1]",
            state,
            f"{wanted:,}",
        )

    def field(self, name: str) -> Element:
        return self.find(f'[data-field="{name}"] input, [data-field="{name}"] textarea')

    def wrong(self, name: str, text: str) -> None:
        """Wait until this is said at a field."""
        self.find(f'[data-field="{name}"] .wrong', text)

    def edit(self, selector: str, text: str) -> None:
        """A whole new text in an editor, as if it had been pasted."""
        self.browser.script(
            """const [area, text] = arguments;
            area.focus(); area.select(); document.execCommand("insertText", false, text);""",
            self.find(selector),
            text,
        )

    def forgive(self, pattern: str) -> None:
        """The browser complains of every answer that is an error; this test brings it about."""
        self._forgiven.append(pattern)

    def complaints(self) -> list[str]:
        """What the browser said that this test has not brought about."""
        return [line for line in self.browser.log() if not any(re.search(one, line) for one in self._forgiven)]


def looking(browser: Browser, url: str) -> Iterator[Page]:
    """A fresh page. A test fails on anything that the browser complains of."""
    page = Page(browser, url)
    browser.size(1280, 900)
    browser.prefer("light")
    browser.open(f"{url}/robots.txt")
    browser.script("sessionStorage.clear(); localStorage.clear()")
    browser.log()
    yield page
    page.api.close()
    browser.open("about:blank")
    assert page.complaints() == []


def safe(page: Page) -> None:
    """Nothing of it became a part of the page."""
    assert page.browser.script("return window.hit ?? null") is None
    inside = "main img, main script, main svg[onload], dialog img, dialog script, dialog svg[onload], iframe"
    assert page.browser.script("return document.querySelectorAll(arguments[0]).length", inside) == 0
    assert page.browser.script("return [...document.links].filter((link) => link.protocol !== 'http:').length") == 0


CONTRAST = (Path(__file__).parents[1] / "dashboard" / "contrast.js").read_text()
NAMELESS = """
    return [...document.querySelectorAll("a[href], button, input, select, textarea, [role=img], [role=group]")]
      .filter((node) => node.checkVisibility())
      .filter((node) => !node.textContent.trim() && !node.ariaLabel && !node.labels?.length)
      .concat([...document.querySelectorAll("table:not([aria-label])")].filter((node) => node.checkVisibility()))
      .map((node) => node.outerHTML.slice(0, 200))"""
BROKEN = """
    const found = [];
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const { parentElement } = node;
      const isData = parentElement.closest("pre, code, .mono, .cut, .quiet, textarea");
      if (isData || !parentElement.checkVisibility()) continue;
      for (const word of node.data.matchAll(/[A-Za-z_]{2,15}(?![\\w.-])/g)) {
        if (/[\\w.-]/.test(node.data[word.index - 1] ?? " ")) continue;
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) found.push(word[0]);
      }
    }
    return found"""
"""Words of usual length that are broken in the middle."""
HEADS = """
    const heads = [...document.querySelectorAll("main thead th")].filter((node) => node.checkVisibility());
    const sizes = new Set(heads.map((node) => getComputedStyle(node.querySelector("button") ?? node).fontSize));
    return [sizes.size, heads.map((node) => node.textContent).filter((text) => /^[A-Z]/.test(text))]"""
"""How many sizes the heads of tables have, and those that begin with a capital."""
LOOKS = ((1280, "light"), (1280, "dark"), (768, "light"), (390, "light"), (390, "dark"), (360, "light"))


def check_layout(page: Page) -> None:
    """Light and dark, wide and narrow: everything has a name, fits, can be read, and no word is broken."""
    assert len(page.browser.texts("h1")) == 1
    assert page.browser.script(NAMELESS) == []
    for width, scheme in LOOKS:
        page.browser.size(width, 800)
        page.browser.prefer(scheme)
        page.browser.until("return innerWidth === arguments[0]", width)
        wide = page.browser.script(
            """const inside = document.querySelector("dialog[open]") ?? document.documentElement;
            return [document.documentElement.scrollWidth, inside.scrollWidth, inside.clientWidth]"""
        )
        assert wide[0] <= width, f"{wide[0]} wide at {width}"
        assert wide[1] <= wide[2]
        assert page.browser.script(CONTRAST) == [], f"hard to read at {width}, {scheme}"
        sizes, capitals = page.browser.script(HEADS)
        assert sizes <= 1
        assert capitals == [], "heads of tables are in lower case on every page"
        broken = page.browser.script(BROKEN)
        assert broken == [], f"broken words at {width}: {broken}"
