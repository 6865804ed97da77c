"""Topics: publishing records, what there is, and reading by range. ``/v1/topics`` and below."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.topic_filter import MOST_PATTERNS
from yirangmq.core.topics import MOST_SEQUENCE
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import LIMIT, Field, Kind, text, whole
from yirangmq.doors.http.v1.log import check_start, log_of, topics_of
from yirangmq.doors.http.v1.record_shapes import iso_ns, shown_record
from yirangmq.doors.http.v1.schemas import COUNT, INSTANT, TEXT, items, ref, some, thing
from yirangmq.doors.http.v1.topic_intake import FRAMES, HEADERS, read_records
from yirangmq.format.json_codec import dumps
from yirangmq.topics.live import Stored
from yirangmq.topics.ports import MOST_PER_PUBLISH

MILLISECOND = 1_000_000


def publish(ask: Ask) -> None:
    """All of them or none; they are on disk when this answers."""
    topics = topics_of(ask)
    ask.house.check_room()
    topic = ask.path["topic"]
    records = read_records(topic, ask.request)
    topics.publish(records, ask.told(partial(_stored, ask, topic, len(records))))


def _stored(ask: Ask, topic: str, count: int, stored: Stored | None) -> None:
    assert stored is not None
    ask.reply(
        {
            "topic": topic,
            "epoch": stored.epoch,
            "first": stored.first,
            "last": stored.last,
            "topicSequence": stored.topics[topic],
            "stored": count,
            "at": iso_ns(stored.at_ns),
        }
    )


# -- looking ----------------------------------------------------------------------------------------------------------


def list_topics(ask: Ask) -> None:
    topics_of(ask)
    sees = ask.sees()
    ask.call("topics", {}, lambda found: ask.reply(_without_log(found, sees)))


def _without_log(found: dict[str, Any], sees: Callable[[str], bool]) -> dict[str, Any]:
    return {
        "state": found["state"],
        "epoch": found.get("epoch"),
        "first": found.get("first", 1),
        "last": found.get("last", 0),
        "gaps": found.get("gaps", []),
        "topics": [row for row in found["topics"] if sees(row["topic"])],
    }


def list_subscribers(ask: Ask) -> None:
    topics_of(ask)
    ask.call("topic_subscribers", {}, lambda rows: ask.reply({"subscribers": rows}))


def show_topic(ask: Ask) -> None:
    topics_of(ask)
    topic = ask.path["topic"]

    def reply(found: dict[str, Any]) -> None:
        for row in found["topics"]:
            if row["topic"] == topic:
                ask.reply(row)
                return
        raise NotFound(f"there is no topic {topic!r}", field="topic")

    ask.call("topics", {}, reply)


def read_page(ask: Ask) -> None:
    """Records of one topic, from a sequence or a time on. ``next`` is where the next page begins."""
    query = ask.query()
    topic, place = ask.path["topic"], place_of(query)
    log = log_of(ask)
    if "start" in place:
        check_start(log, place["start"])
    given = {"topics": [topic], "limit": query["limit"]} | place

    def reply(page: dict[str, Any]) -> None:
        about = {"topic": topic, **{name: page[name] for name in ("epoch", "first", "last", "next")}}
        records = b",".join(shown_record(one) for one in page["records"])
        ask.respond(b'%s,"records":[%s]}' % (dumps(about)[:-1], records))

    ask.call("topic_read", given, reply)


def place_of(query: dict[str, Any]) -> dict[str, int]:
    """Where to begin, as the named methods have it."""
    if "fromSeq" in query and "fromTime" in query:
        raise BadInput("stands beside fromSeq; give one of them", field="fromTime")
    if "fromTime" in query:
        return {"at_ns": query["fromTime"]}
    return {"start": query["fromSeq"]} if "fromSeq" in query else {}


# -- declarations -----------------------------------------------------------------------------------------------------


def _check_instant(value: object, field: str) -> int:
    """Nanoseconds since 1970, of milliseconds or of a time as ISO 8601 has it; one without a zone is UTC."""
    if isinstance(value, int):
        return whole(0, MOST_SEQUENCE // MILLISECOND).check(value, field) * MILLISECOND  # type: ignore[no-any-return]
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise BadInput(f"must be a time such as 2026-01-13T09:21:00Z, not {str(value)[:60]!r}", field=field) from None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    return max(0, since // timedelta(microseconds=1)) * 1000


def _parse_instant(written: str, field: str) -> object:
    return int(written) if written.isascii() and written.isdecimal() and len(written) < 20 else written


INSTANT_KIND = Kind(
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MOST_SEQUENCE // MILLISECOND},
               {"type": "string", "format": "date-time"}]}, _check_instant, _parse_instant,
)  # fmt: skip
FROM_SEQUENCE = Field("fromSeq", whole(1, MOST_SEQUENCE), "begin with this sequence of the log")
FROM_TIME = Field("fromTime", INSTANT_KIND, "begin with the first record from this time on, in milliseconds since 1970 "
                  "or as ISO 8601 has it")  # fmt: skip
TOPICS = Field("topics", text(16_000), f"names and patterns, split by commas; up to {MOST_PATTERNS} patterns")
BODY = Content(
    {
        "application/json": {
            "description": "a record, a bare payload, or an array of them",
            "anyOf": [
                {"type": "array", "minItems": 1, "maxItems": MOST_PER_PUBLISH},
                {"type": ["object", "string", "number", "boolean", "null"]},
            ],
        },
        "application/x-ndjson": {"type": "string", "description": "a record or a bare payload a line"},
        FRAMES: {"type": "string", "format": "binary", "description": "record frames (docs/log.md)"},
        "*/*": {"description": "any bytes: the payload of one record"},
    },
    "what to publish",
)
ONE = "/v1/topics/{topic}"
REFUSALS = ("not_found", "store_error", "store_damaged")
SUBSCRIBER = thing(
    ("confirmed", "sent", "recoveries", "peer", "heardAt", "epoch"),
    subscriber=TEXT, name=TEXT, state=TEXT, filter=TEXT, sequence=COUNT, confirmed=some(COUNT), lag=COUNT, sent=COUNT,
    recoveries=COUNT, peer=TEXT, heardAt=INSTANT, epoch=TEXT,
)  # fmt: skip
PUBLISHED = thing(topic=TEXT, epoch=TEXT, first=COUNT, last=COUNT, topicSequence=COUNT, stored=COUNT, at=INSTANT)
PAGE = thing(topic=TEXT, epoch=TEXT, first=COUNT, last=COUNT, next=COUNT, records=items(ref("Record")))


def endpoints(max_body: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint("GET", "/v1/topics", "Every topic with its numbers", list_topics, "topics", "list",
                 thing(("epoch",), state=TEXT, first=COUNT, last=COUNT, gaps=items(items(COUNT)),
                       topics=items(ref("Topic"))), refusals=REFUSALS, is_filtered=True),
        Endpoint("GET", "/v1/subscribers", "Who follows topics, and durable subscribers that are away",
                 list_subscribers, "topics", "look", thing(subscribers=items(SUBSCRIBER)), refusals=("not_found",)),
        Endpoint("GET", ONE, "One topic", show_topic, "topics", "list", ref("Topic"), refusals=REFUSALS),
        Endpoint("POST", f"{ONE}/records", "Publish one record or many", publish, "topics", "publish", PUBLISHED,
                 content=BODY, headers=HEADERS, max_body=max_body, refusals=(*REFUSALS, "store_full")),
        Endpoint("GET", f"{ONE}/records", "Records of a topic, by range", read_page, "topics", "follow", PAGE,
                 query=(FROM_SEQUENCE, FROM_TIME, LIMIT), refusals=(*REFUSALS, "retired")),
    )  # fmt: skip
