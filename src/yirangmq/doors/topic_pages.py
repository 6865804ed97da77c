"""Records by range, a page at a time: what is asked for, and the page. Knows: the log. Does not know: who asks."""

from contextlib import closing
from typing import Any

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import MOST_SEQUENCE, Log
from yirangmq.doors.values import Values
from yirangmq.topics.adapters import PageLimits, read_page

PAGE_BYTES = 1 << 20
"""Payload bytes on one page of records, but for a single one that is larger."""
PAGE_LOOK = 20_000
"""Records looked at for one page: others, confirmations among them, wait for the same thread."""


def read_wanted(values: Values) -> tuple[int | None, int | None, Filter, int]:
    start, at_ns, topics = _number(values, "start"), _number(values, "at_ns"), values.take("topics", [])
    if not isinstance(topics, list):
        raise BadInput("must be a list of names and patterns", field="topics")
    return start, at_ns, make_filter(topics), values.limit(100)


def _number(values: Values, field: str) -> int | None:
    given = values.take(field, None)
    return None if given is None else validation.check_count(given, field, least=0, most=MOST_SEQUENCE)


def page(log: Log, start: int | None, at_ns: int | None, filter: Filter, limit: int) -> dict[str, Any]:
    """On a thread of its own."""
    with closing(log.reader()) as reader:
        if start is None:
            start = reader.first if at_ns is None else max(reader.sequence_at(at_ns), reader.first)
        found = read_page(reader, filter, start, PageLimits(limit, PAGE_BYTES, PAGE_LOOK))
        about = {"epoch": reader.epoch, "first": reader.first, "last": reader.last, "next": found.last + 1}
    return {**about, "records": [[*one[:5], dict(one.headers), one.payload] for one in found.records]}
