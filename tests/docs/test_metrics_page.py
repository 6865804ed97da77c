"""The page of metrics names every metric with its type, every rate and every event."""

import re
from pathlib import Path

from yirangmq.core.events import LeasesSettled, MessagesPublished, QueueChanged
from yirangmq.observe.events import LOG_LEVELS, STEPS, VERBS, describe
from yirangmq.observe.metrics import no_rates
from yirangmq.observe.prometheus import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_metrics_page_lists_every_metric_with_its_type_and_no_other() -> None:
    rows = re.findall(r"^\| `(yirangmq_\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert rows == [(name, kind) for name, (kind, _) in METRICS.items()]


def test_metrics_page_names_every_rate() -> None:
    assert [name for name in no_rates() if f"`{name}`" not in PAGE] == []


def test_metrics_page_names_every_event() -> None:
    names = ["died", "lapsed", "redriven", "parked", "dropped", "refused"]
    assert len(names) == len([kind for kind in LOG_LEVELS if kind is not QueueChanged])
    names += [*VERBS.values(), *STEPS.values(), "published", "leased"]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_metrics_page_names_the_members_of_an_event() -> None:
    for event in (MessagesPublished("q", 1, 1), LeasesSettled("q", "nack", 1, [1], "TIMEOUT")):
        assert [name for name in describe(event, 0) if f"`{name}`" not in PAGE and f'"{name}"' not in PAGE] == []


def test_metrics_page_expressions_use_only_existing_metrics() -> None:
    known = {name + tail for name in METRICS for tail in ("", "_bucket", "_sum", "_count")}
    assert [name for name in re.findall(r"yirangmq_\w+", PAGE) if name not in known and name != "yirangmq_"] == []
