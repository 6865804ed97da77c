"""Many records looked at at once: the same answer as one by one, and the same complaint."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.topics import NO_HEADERS, NewRecord
from yirangmq.stores.log.log import SegmentLog
from yirangmq.wire.records import BULK_RECORDS, PLAIN, check_batch

KNOWN = {"known": 7}
SHARED = {"batch": "q/1"}
USUAL = NewRecord("known", b"payload", None, SHARED)


class Text(str):
    """As numpy has one."""


LARGE = memoryview(bytes(PLAIN + 1))


def found(batch: list[NewRecord]) -> tuple[Any, ...]:
    try:
        return (check_batch(batch, KNOWN),)
    except QueueError as error:
        return type(error), error.field, str(error)


def together(odd: Any) -> tuple[Any, ...]:
    return found([USUAL] * BULK_RECORDS + [odd] + [USUAL] * BULK_RECORDS)


def one_by_one(odd: Any) -> tuple[Any, ...]:
    """Few enough that each is looked at; the usual ones weigh seven bytes."""
    told = found([odd])
    return (told[0] + 2 * BULK_RECORDS * len(USUAL.payload),) if len(told) == 1 else told


@pytest.mark.parametrize(
    "odd",
    [
        USUAL,
        USUAL._replace(topic="new"),
        USUAL._replace(topic="not a topic"),
        USUAL._replace(topic=""),
        USUAL._replace(topic=7),  # type: ignore[arg-type]
        USUAL._replace(topic=["known"]),  # type: ignore[arg-type]
        USUAL._replace(payload=b""),
        USUAL._replace(payload=memoryview(b"view")),  # type: ignore[arg-type]
        USUAL._replace(payload=memoryview(array("I", [1, 2]))),  # type: ignore[arg-type]
        USUAL._replace(payload=memoryview(b"every second")[::2]),  # type: ignore[arg-type]
        USUAL._replace(payload="text"),  # type: ignore[arg-type]
        USUAL._replace(payload=None),  # type: ignore[arg-type]
        USUAL._replace(payload=LARGE),  # type: ignore[arg-type]
        USUAL._replace(key="key"),
        USUAL._replace(key=""),
        USUAL._replace(key=b"bytes"),  # type: ignore[arg-type]
        USUAL._replace(key="\ud800"),
        USUAL._replace(headers=NO_HEADERS),
        USUAL._replace(headers={"batch": "another"}),
        USUAL._replace(headers={"batch": Text("q/1")}),
        USUAL._replace(headers={"batch": 1}),  # type: ignore[dict-item]
        USUAL._replace(headers="text"),  # type: ignore[arg-type]
    ],
)
def test_record_batch_check_of_an_odd_record_among_many_equals_the_check_one_by_one(odd: NewRecord) -> None:
    assert together(odd) == one_by_one(odd)


@pytest.mark.parametrize("spoilt", [{"headers": {"a": 1}}, {"topic": "no topic"}, {"payload": 1}, {"key": 1}])
def test_record_batch_of_many_invalid_records_is_refused_like_a_single_one(spoilt: dict[str, Any]) -> None:
    odd = USUAL._replace(**spoilt)
    assert len(found([odd])) == 3
    assert found([odd] * 3 * BULK_RECORDS) == found([odd])


def test_record_batch_that_is_empty_is_refused() -> None:
    assert found([])[1] == "records"


def test_record_payload_of_a_memory_view_of_numbers_is_refused(tmp_path: Path) -> None:
    """Its length is not its size: as a record it could not be read again."""
    with SegmentLog(tmp_path / "log") as log:
        with pytest.raises(BadInput, match="payload"):
            log.append([NewRecord("t", memoryview(array("I", [1, 2])))])  # type: ignore[arg-type]
        log.append([NewRecord("t", memoryview(b"bytes"))])  # type: ignore[arg-type]
    with SegmentLog(tmp_path / "log") as log:
        assert [record.payload for record in log.reader().records(1)] == [b"bytes"]


def test_record_headers_accept_a_subclass_of_str(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log") as log:
        log.append([USUAL] * BULK_RECORDS + [USUAL._replace(headers={"batch": Text("q/2")})])
        assert next(log.reader().records(BULK_RECORDS + 1)).headers == {"batch": "q/2"}
