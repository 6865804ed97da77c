"""Makes ``docs/pictures`` anew: a real server with the traffic of a small shop, in a real browser, light and dark.
``make pictures``; it takes about three minutes, most of which the charts need to fill. With names as arguments only
those pictures are taken.

The page takes the fonts of the system; with Debian's fonts-inter and fonts-jetbrains-mono the pictures look as kept."""

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.chromium import Browser  # noqa: E402
from tests.support.dashboard import Api, Page  # noqa: E402
from tests.support.server_process import daemon  # noqa: E402
from yirangmq import NewMessage  # noqa: E402
from yirangmq.clock import TimeOrderedIds  # noqa: E402
from yirangmq.testing import ManualClock, open_for_test  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 200_000
WARM_SECONDS = 150
STEP_SECONDS = 0.25
DAY_MS = 86_400_000
CHANCE = random.Random(7)


class Line(NamedTuple):
    """One queue of the shop: messages a second, the share of them that consumers manage, and the share that fails."""

    queue: str
    rate: float
    pace: float
    fails: float
    type: str
    text: str = ""


SHOP = (
    Line("emails", 26, 0.97, 0.05, "email.send", "SMTP 451: mailbox busy, try later"),
    Line("images.resize", 9, 1.05, 0.03, "image.uploaded", "not an image: unknown header"),
    Line("invoices.render", 5, 1.1, 0.01, "invoice.wanted", "font is missing"),
    Line("orders.created", 34, 1.04, 0.004, "order.created", "stock service answered 503"),
    Line("orders.paid", 21, 1.06, 0.006, "order.paid", "ledger is locked"),
    Line("search.index", 48, 1.1, 0.0, "product.changed"),
    Line("shipping.labels", 12, 1.0, 0.02, "label.wanted", "carrier answered 500"),
    Line("stock.updates", 96, 1.08, 0.001, "stock.changed", "article is unknown"),
    Line("webhooks.partner", 14, 0.96, 0.012, "partner.notify", "POST took longer than 10 s"),
)
REASONS = ("TIMEOUT",) * 6 + ("HANDLER_ERROR",) * 3 + ("REJECTED",) * 2 + ("VALIDATION_ERROR",)
TEXTS = {
    "TIMEOUT": "POST took longer than 10 s",
    "HANDLER_ERROR": "partner answered 502 Bad Gateway",
    "REJECTED": "partner answered 410 Gone",
    "VALIDATION_ERROR": "payload.sku: must be a string",
}


def payload(line: Line, number: int) -> dict[str, Any]:
    order = 480_000 + number
    items = [{"sku": f"A-{CHANCE.randrange(1000, 1400)}", "count": CHANCE.randrange(1, 4)} for _ in range(2)]
    return {"order": order, "total": round(CHANCE.uniform(8, 240), 2), "currency": "EUR", "items": items}


def yesterday_and_before(url: str) -> None:
    """Two weeks of dead letters, as a store has them that ran for two weeks."""
    clock = ManualClock(int(time.time() * 1000) - 12 * DAY_MS)
    [line] = [one for one in SHOP if one.queue == "webhooks.partner"]
    with open_for_test(url, clock=clock, ids=TimeOrderedIds(), consumer="notifier-1") as queues:
        queues.set_policy(line.queue, {"retry": {"limit": 0}, "visibilityTimeoutSec": 300})
        for day in range(12):
            for number in range(CHANCE.randrange(9, 26) + (38 if day == 8 else 0)):
                sent = payload(line, number)
                attributes = {"partner": CHANCE.choice(("north", "harbour")), "priority": 5}
                trace = f"4bf92f3577b34da6-{day}{number}"
                new = NewMessage(payload=sent, type=line.type, version=2, trace_id=trace, attributes=attributes)
                queues.publish_many(line.queue, [new])
                [taken] = queues.lease(line.queue)
                reason = CHANCE.choice(REASONS)
                queues.nack(taken.lease_id, reason=reason, text=TEXTS[reason])
                clock.advance(DAY_MS // 90)
            clock.advance(DAY_MS - (clock.now_ms() % DAY_MS))


class Traffic:
    """Producers and consumers of the shop, until it is closed."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._done = {line.queue: 0 for line in SHOP}
        self._failed = dict(self._done)
        self._began = time.monotonic()

    def open(self) -> None:
        for line in SHOP[:-1]:
            policy = {"retry": {"limit": 1, "backoff": "fixed", "initialDelaySec": 20}, "visibilityTimeoutSec": 60}
            self._api("PUT", f"queues/{line.queue}/policy", policy)
        self._api("POST", "queues/reports.nightly/messages", [{"report": name} for name in ("sales", "stock")])
        self._api("POST", "queues/reports.nightly/pause")
        for topic in FEEDS:
            self._api("POST", f"topics/{topic}/records", [{"payload": reading(topic, 0)}])
        self._api("POST", "bridges", {"name": "alarms", "queue": "alarms", "topics": ["alarms.*"]})
        self._api("POST", "bridges", {"name": "prices", "queue": "prices.import", "topics": ["prices.*"]})
        epoch = self._api("GET", "log")["epoch"]
        for name in ("ledger", "warehouse"):
            self._api("PUT", f"cursors/{name}", {"sequence": 1, "epoch": epoch})
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(STEP_SECONDS):
            for line in SHOP:
                number += 1
                self._step(line, number)
            self._feed(number)
            self._beat()

    def _feed(self, number: int) -> None:
        for topic, rate in FEEDS.items():
            count = round(rate * STEP_SECONDS + CHANCE.random() - 0.5)
            records = [{"payload": reading(topic, number + n), "key": f"shop-{n % 4}"} for n in range(count)]
            if records:
                self._api("POST", f"topics/{topic}/records", records)
        page = self._api("GET", "log")
        self._api("PUT", "cursors/ledger", {"sequence": page["last"], "epoch": page["epoch"]})

    def _step(self, line: Line, number: int) -> None:
        wave = 1 + 0.35 * CHANCE.uniform(-1, 1) + 0.3 * _hill((time.monotonic() - self._began) / WARM_SECONDS)
        count = round(line.rate * STEP_SECONDS * wave + CHANCE.random() - 0.5)
        if count > 0:
            envelopes = [self._envelope(line, number * 100 + each) for each in range(count)]
            self._api("POST", f"queues/{line.queue}/messages?as=envelope", envelopes)
        most = max(1, round(line.rate * line.pace * STEP_SECONDS * 1.15 + CHANCE.random() - 0.5))
        taken = [one["lease"]["leaseId"] for one in self._api.lease(line.queue, most, consumer=_worker(line))]
        bad = [lease for lease in taken if CHANCE.random() < line.fails]
        slow = set(taken[: CHANCE.choice((0, 0, 0, 1))])
        good = [lease for lease in taken if lease not in bad and lease not in slow]
        if good:
            self._api("POST", f"queues/{line.queue}/ack", {"leases": good})
        if bad:
            reason = CHANCE.choice(("HANDLER_ERROR", "HANDLER_ERROR", "TIMEOUT"))
            self._api("POST", f"queues/{line.queue}/nack", {"leases": bad, "reason": reason, "text": line.text})
        self._done[line.queue] += len(good)
        self._failed[line.queue] += len(bad)

    def _envelope(self, line: Line, number: int) -> dict[str, Any]:
        attributes = {"priority": CHANCE.choice((1, 5, 5, 5))} if line.queue == "emails" else {"site": "north"}
        return {"type": line.type, "version": 1, "attributes": attributes, "payload": payload(line, number)}

    def _beat(self) -> None:
        for place, line in enumerate(SHOP):
            self._api("PUT", f"consumers/{_worker(line)}", {
                "host": f"app-{1 + place % 3}", "pid": 2100 + 37 * place, "queues": [line.queue], "state": "running",
                "inWork": CHANCE.randrange(4), "done": 18_000 + place * 731 + self._done[line.queue],
                "failed": self._failed[line.queue], "startedAt": int(time.time() * 1000) - 3_600_000 * (5 + place),
            })  # fmt: skip


FEEDS = {"alarms.door": 0.4, "alarms.heat": 0.2, "prices.east": 40.0, "prices.west": 32.0, "readings.temp": 120.0}
"""Topics of the shop: records a second."""


def reading(topic: str, number: int) -> dict[str, Any]:
    value = round(20 + CHANCE.uniform(-2, 2), 1) if topic.startswith("readings") else round(CHANCE.uniform(5, 90), 2)
    return {"n": number, "site": CHANCE.choice(("north", "south")), "value": value}


def _worker(line: Line) -> str:
    return f"{line.queue.replace('.', '-')}-1"


def _hill(share: float) -> float:
    """Up, and down again, twice."""
    return abs(2 * (share * 2 % 1) - 1)


@contextmanager
def shop(folder: Path) -> Iterator[str]:
    """The address of a server that has been busy for a while."""
    (folder / "yirang-data").mkdir(mode=0o700)
    yesterday_and_before(f"sqlite:{folder / 'yirang-data' / 'queue.db'}")
    with daemon(folder, "--http", "127.0.0.1:0", "--node", "shop-1", data="") as server:
        url = server.address_of("http")
        traffic = Traffic(Api(url))
        traffic.open()
        try:
            time.sleep(WARM_SECONDS)
            yield url
        finally:
            traffic.close()


def overview(page: Page) -> None:
    page.go("/").find("a.queue-name", "webhooks")
    page.find('.charts-part[data-drawn="minutes"]')


def queue(page: Page) -> None:
    page.go("/queues/emails").find("button.open")
    page.find('.charts-part[data-drawn="minutes"]')


def all_letters(page: Page) -> None:
    page.go("/dead-letters").find(".dead-queues .reason")
    page.find(".days rect")


def send_again(page: Page) -> None:
    [found] = page.api("GET", "queues/webhooks.partner/dead-letters?limit=1&filter=reasonCode%3DVALIDATION_ERROR")[
        "messages"
    ]
    page.go(f"/queues/webhooks.partner/send-again/{found['messageId']}").find("form.publish")


def alerts(page: Page) -> None:
    page.go("/alerts").find(".rules th")


def letters(page: Page) -> None:
    page.go("/queues/webhooks.partner/dead-letters").find(".days rect")


def message(page: Page) -> None:
    page.go("/queues/webhooks.partner/dead-letters").find(".days rect")
    page.click("button.open")
    page.find(".drawer .payload", "order")


def policy(page: Page) -> None:
    page.go("/queues/emails/policy").find(".in-force .differs")
    text = '{\n  "visibilityTimeoutSec": 60,\n  "retry": {\n    "limit": 3,\n    "backoff": "quadratic"\n  }\n}'
    page.edit(".policy-edit textarea", text)
    page.find(".wrong", "retry.backoff")


def consumers(page: Page) -> None:
    page.go("/consumers").find(".consumers .badge")


def topics(page: Page) -> None:
    page.go("/topics").find(".bridges .badge")


def topic(page: Page) -> None:
    page.go("/topics/readings.temp").find(".tail td")
    page.click("button", "Pause list")


WIDE, PHONE = (1280, 800), (390, 844)
SHOTS: tuple[tuple[str, Callable[[Page], None], tuple[int, int], tuple[str, ...]], ...] = (
    ("overview", overview, WIDE, ("light", "dark")),
    ("queue", queue, WIDE, ("light", "dark")),
    ("dead-letters", letters, WIDE, ("light", "dark")),
    ("message", message, WIDE, ("light",)),
    ("all-dead-letters", all_letters, WIDE, ("light",)),
    ("send-again", send_again, WIDE, ("light",)),
    ("alerts", alerts, WIDE, ("light",)),
    ("policy", policy, WIDE, ("dark",)),
    ("consumers", consumers, WIDE, ("light",)),
    ("topics", topics, WIDE, ("light", "dark")),
    ("topic", topic, WIDE, ("light",)),
    ("phone", overview, PHONE, ("light", "dark")),
    ("phone-queue", queue, PHONE, ("light",)),
)


def take(browser: Browser, url: str, wanted: set[str]) -> None:
    page = Page(browser, url)
    page.open().live()
    for name, show, (width, height), schemes in SHOTS:
        if wanted and name not in wanted:
            continue
        browser.size(width, height)
        page.go("/nowhere").find(".empty")
        show(page)
        time.sleep(1.5)  # one more look at the server, so that nothing is half drawn
        for scheme in schemes:
            browser.prefer(scheme)
            data = browser.picture()
            assert len(data) < MOST_BYTES, f"{name}-{scheme}: {len(data)} bytes"
            (PICTURES / f"{name}-{scheme}.png").write_bytes(data)
            print(f"{name}-{scheme}.png  {len(data) // 1000} kB")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, shop(Path(folder)) as url, Browser(*WIDE) as browser:
        take(browser, url, set(sys.argv[1:]))


if __name__ == "__main__":
    main()
