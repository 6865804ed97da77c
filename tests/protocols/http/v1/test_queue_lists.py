"""Lists of queues a page at a time: over HTTP, as a named call, and as metrics; made in slices."""

from typing import Any

import pytest

from tests.support.http_api import Web
from tests.support.session import Server
from yirangmq.admin import queue_reads
from yirangmq.core.errors import TooLarge
from yirangmq.observe.metrics import Metrics

NAMES = [f"{kind}-{number:03}" for kind in ("mail", "post") for number in range(60)]
"""More than two slices of rows."""


@pytest.fixture
def many(web: Web) -> Web:
    with web.server.store.transaction() as transaction:
        for name in NAMES:
            transaction.set_policy(name, None)
    web.good("POST", "/v1/queues/post-007/messages", [1, 2, 3])
    web.good("POST", "/v1/queues/mail-040/messages", [1])
    web.good("POST", "/v1/queues/post-008/messages", [1])
    return web


def walk(web: Web, path: str, **query: Any) -> list[list[str]]:
    """The names of each page, until there is no cursor."""
    pages, cursor = [], ""
    while True:
        given = "&".join(f"{name}={value}" for name, value in {**query, "cursor": cursor}.items())
        found = web.good("GET", f"{path}?{given}")
        pages.append([row["queue"] for row in found["queues"]])
        cursor = found["cursor"]
        if not cursor:
            return pages


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/status"])
def test_paging_of_queues_has_every_queue_once_in_order(many: Web, path: str) -> None:
    pages = walk(many, path, limit=50)
    assert [len(page) for page in pages] == [50, 50, 20]
    assert [name for page in pages for name in page] == NAMES
    assert walk(many, path, limit=60, prefix="post-") == [NAMES[60:]]
    assert walk(many, path, limit=3, find="T-01") == [NAMES[70:73], NAMES[73:76], NAMES[76:79], NAMES[79:80]]
    assert walk(many, path) == [NAMES]


def test_paging_of_queues_by_a_count_continues_where_it_ended(many: Web) -> None:
    first = ["post-007", "mail-040", "post-008"]
    rest = [name for name in NAMES if name not in first]
    pages = walk(many, "/v1/queues", sort="-ready", limit=2)
    assert [name for page in pages for name in page] == [*first, *rest]
    assert walk(many, "/v1/queues", sort="ready", prefix="post-00", limit=9) == [
        [*(name for name in NAMES[60:70] if name not in first), "post-008"][:9],
        ["post-007"],
    ]


def test_queue_list_includes_the_totals_of_all_queues(many: Web) -> None:
    found = many.good("GET", "/v1/queues?limit=1&prefix=mail-04")
    assert len(found["queues"]) == 1
    everything = found["all"]
    assert (everything["queues"], everything["backlog"], everything["ready"]) == (len(NAMES), 5, 5)
    assert everything["totals"]["published"] == 5


def test_paging_with_an_invalid_limit_sort_or_cursor_is_rejected_by_name(many: Web) -> None:
    assert many.refused("GET", "/v1/queues?limit=0") == (400, "bad_input", "limit")
    assert many.refused("GET", "/v1/queues?limit=1001") == (400, "bad_input", "limit")
    assert many.refused("GET", "/v1/queues?sort=age") == (400, "bad_input", "sort")
    assert many.refused("GET", "/v1/queues?sort=-ready&cursor=x") == (400, "bad_input", "cursor")


def test_queue_list_is_made_in_slices_and_other_requests_run_in_between(many: Web) -> None:
    """Whoever asks meanwhile is answered in between, after one slice at most."""
    server: Server = many.server
    told: list[str] = []
    for name in ("status", "metrics"):
        told.clear()
        server.calls.find(name)(server.desk, {}, lambda value, error: told.append("list"))
        server.desk.submit(lambda transaction: None, lambda value, error: told.append("other"))
        server.turn()
        assert told == ["other", "list"]


def test_paging_of_the_named_call_for_queues_is_bounded(many: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    client = many.server.client()
    assert client.call("queues") == NAMES
    assert client.call("queues", after="mail-058", limit=3) == NAMES[59:62]
    assert client.call("queues", prefix="post-01", limit=100) == NAMES[70:80]
    assert client.call("queues", policied=True) == []
    monkeypatch.setattr(queue_reads, "MAX_NAMES", 100)
    with pytest.raises(TooLarge, match="in pages"):
        client.call("queues")
    assert client.call("queues", limit=100) == NAMES[:100]


def test_metrics_of_queues_past_the_limit_are_summed_up(many: Web) -> None:
    observing = many.server.observing
    observing.most_queues, observing.metrics = 2, Metrics(many.server.clock, 2)
    many.server.verbs.event_buffer.add_listener(observing.metrics.on_events)
    many.good("POST", "/v1/queues/post-050/messages", [1, 2])
    many.good("POST", "/v1/queues/post-051/messages", [1])
    many.good("POST", "/v1/queues/post-052/messages", [1])
    lines = dict(line.rsplit(" ", 1) for line in many.server.client().call("metrics").splitlines() if line[0] != "#")
    ready = {name: value for name, value in lines.items() if name.startswith("yirangmq_queue_ready")}
    assert ready == {
        'yirangmq_queue_ready{queue="post-050"}': "2",
        'yirangmq_queue_ready{queue="post-051"}': "1",
        'yirangmq_queue_ready{queue="_other"}': "6",
    }
    assert lines['yirangmq_published_total{queue="_other"}'] == "6"
    assert lines['yirangmq_published_bytes_total{queue="_other"}'] == "1"
    assert (lines["yirangmq_queues"], lines["yirangmq_queues_folded"]) == ("120", "118")
