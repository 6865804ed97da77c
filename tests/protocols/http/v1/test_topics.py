"""Topics over HTTP, with a real server, a real log and real sockets: publishing, reading, following, the whole log."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from tests.support.http_server import HttpServer
from tests.support.topic_server import SMALL
from tests.support.wait import PATIENCE
from yirangmq.clock import SystemClock
from yirangmq.core.topics import NewRecord
from yirangmq.stores.log.log import SegmentLog
from yirangmq.stores.memory import MemoryStore
from yirangmq.wire.records import RecordReader, encode_batch

FRAMES = "application/vnd.yirangmq.records"


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str, str | None]:
        error = self.document["error"]
        return self.status, error["code"], error.get("field")


class Site:
    """One server and its clients."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.server = HttpServer(MemoryStore(), SystemClock(), folder=folder)
        self._line: HTTPConnection | None = None

    def start(self) -> None:
        self.server.start()
        self._line = self.dial()

    def again(self, between: Callable[[], None] = lambda: None) -> None:
        """The server stops, something happens to its files, and it starts."""
        self.server.stop()
        between()
        self.server = HttpServer(MemoryStore(), SystemClock(), folder=self.folder)
        self.start()

    def dial(self) -> HTTPConnection:
        return self._stack.enter_context(closing(HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)))

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        assert self._line is not None
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        self._line.request(method, path, body, sent)
        response = self._line.getresponse()
        return Answer(response.status, response.read())

    def good(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        answer = self.ask(method, path, body, **headers)
        assert answer.status == 200, answer
        return answer.document

    def publish(self, topic: str, *payloads: object) -> Any:
        return self.good("POST", f"/v1/topics/{topic}/records", [{"payload": one} for one in payloads])

    def follow(self, path: str, last: str = "") -> "Events":
        line = self.dial()
        line.request("GET", path, headers={"last-event-id": last} if last else {})
        return Events(line.getresponse())


class Events:
    """What a stream tells, event by event."""

    def __init__(self, response: HTTPResponse) -> None:
        self.response = response

    def next(self) -> dict[str, str]:
        """The next block that says something."""
        found: dict[str, str] = {}
        while True:
            line = self.response.readline()
            assert line, "the stream has ended"
            name, colon, value = line.decode().rstrip("\n").partition(": ")
            if colon:
                found[name] = value
            elif found.keys() - {"retry"}:
                return found

    def records(self, count: int) -> list[tuple[int, str, Any]]:
        """So many: sequence, topic, payload; the ids are theirs."""
        found: list[tuple[int, str, Any]] = []
        while len(found) < count:
            told = self.next()
            if "event" in told or "data" not in told:
                continue
            record = json.loads(told["data"])
            assert told["id"].rpartition("-")[2] == str(record["sequence"])
            found.append((record["sequence"], record["topic"], record.get("payload")))
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(tmp_path, stack)
        made.start()
        try:
            yield made
        finally:
            stack.close()
            made.server.stop()


def payloads(page: Any) -> list[Any]:
    return [one["payload"] for one in page["records"]]


# -- publishing -------------------------------------------------------------------------------------------------------


def test_topic_publish_accepts_records_as_json_array_ndjson_text_and_bytes(site: Site) -> None:
    one = site.good("POST", "/v1/topics/a.b/records", {"n": 1})
    assert (one["first"], one["last"], one["topicSequence"], one["stored"]) == (1, 1, 1, 1)
    many = site.good("POST", "/v1/topics/a.b/records", [{"payload": {"n": 2}, "key": "k", "headers": {"h": "v"}}, 3])
    assert (many["first"], many["last"], many["topicSequence"], many["stored"]) == (2, 3, 3, 2)
    lines = b'{"payloadBase64": "AAH/"}\n\n"four"\n'
    site.good("POST", "/v1/topics/a.b/records", lines, content_type="application/x-ndjson")
    site.good("POST", "/v1/topics/a.b/records", b"plain", content_type="text/plain", x_mq_key="K")
    site.good("POST", "/v1/topics/a.b/records", b"\x00\xff", x_mq_headers='{"h": "w"}')
    page = site.good("GET", "/v1/topics/a.b/records")
    assert [(one["sequence"], one["topicSequence"]) for one in page["records"]] == [(n, n) for n in range(1, 8)]
    assert payloads({"records": page["records"][:3]}) == [{"n": 1}, {"n": 2}, 3]
    assert [one.get("payloadBase64") for one in page["records"][3:]] == ["AAH/", None, "cGxhaW4=", "AP8="]
    assert [one["key"] for one in page["records"]] == [None, "k", None, None, None, "K", None]
    assert [one["headers"] for one in page["records"][4:]] == [{}, {"content-type": "text/plain"}, {"h": "w"}]
    assert (page["first"], page["last"], page["next"]) == (1, 7, 8)


def test_topic_publish_accepts_encoded_frames_and_rejects_frames_of_another_topic(site: Site) -> None:
    data = encode_batch([NewRecord("t", b"x", "k"), NewRecord("t", b"", None, {"a": "b"})], 9, 9, {}, synced=False).data
    assert site.good("POST", "/v1/topics/t/records", data, content_type=FRAMES)["stored"] == 2
    assert site.ask("POST", "/v1/topics/u/records", data, content_type=FRAMES).refusal[2] == "records[0].topic"
    assert site.ask("POST", "/v1/topics/t/records", data[:-1], content_type=FRAMES).refusal[2] == "body"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "records"),
        ([1, {"payload": 1, "colour": "red"}], "records[1].colour"),
        ([{"payload": 1, "key": 5}], "records[0].key"),
        ([{"payload": 1, "headers": {"a": 1}}], "records[0].headers"),
        ([{"payload": 1, "payloadBase64": ""}], "records[0].payloadBase64"),
        ({"payloadBase64": "?"}, "payloadBase64"),
        (b'{"payload": nope}', "body"),
    ],
)
def test_topic_publish_with_one_invalid_record_stores_none(site: Site, body: object, field: str) -> None:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = site.ask("POST", "/v1/topics/t/records", sent, content_type="application/json")
    assert answer.refusal == (400, "bad_input", field)
    assert site.good("GET", "/v1/log")["last"] == 0


# -- looking ----------------------------------------------------------------------------------------------------------


def test_topic_list_and_paging_of_records_by_sequence_and_time(site: Site) -> None:
    for n in range(5):
        site.publish("a", f"a{n}")
        site.publish("b", f"b{n}")
    assert [row["topic"] for row in site.good("GET", "/v1/topics")["topics"]] == ["a", "b"]
    row = site.good("GET", "/v1/topics/b")
    assert (row["topicSequence"], row["sequence"], row["records"]) == (5, 10, 5)
    assert site.ask("GET", "/v1/topics/c").refusal == (404, "not_found", "topic")
    page = site.good("GET", "/v1/topics/b/records?limit=2")
    assert (payloads(page), page["next"]) == (["b0", "b1"], 5)
    page = site.good("GET", "/v1/topics/b/records?limit=9&fromSeq=5")
    assert (payloads(page), page["next"]) == (["b2", "b3", "b4"], 11)
    at = site.good("GET", "/v1/topics/a/records?fromSeq=7&limit=1")["records"][0]["at"].replace("+00:00", "Z")
    assert payloads(site.good("GET", f"/v1/topics/b/records?fromTime={at}"))[-2:] == ["b3", "b4"]
    assert site.ask("GET", "/v1/topics/b/records?fromTime=1&fromSeq=1").refusal == (400, "bad_input", "fromTime")
    assert site.ask("GET", "/v1/topics/b/records?fromTime=soon").refusal == (400, "bad_input", "fromTime")


# -- the whole log ----------------------------------------------------------------------------------------------------


def test_topic_log_is_read_by_sequence_by_time_and_by_bytes(site: Site) -> None:
    for n in range(40):
        site.publish("ab"[n % 2], *("x" * 1000 for _ in range(10)))
    about = site.good("GET", "/v1/log")
    assert (about["first"], about["last"], about["gaps"]) == (1, 400, [])
    assert site.good("GET", "/v1/log/sequence?atMs=0") == {"sequence": 1}
    assert site.good("GET", "/v1/log/sequence?atMs=9999999999999") == {"sequence": 401}
    whole = site.ask("GET", "/v1/log/frames?after=0&last=400").body
    found = list(RecordReader().feed(whole))
    assert [record.sequence for record in found] == list(range(1, 401))
    part = site.ask("GET", f"/v1/log/frames?after=17&last=203&epoch={about['epoch']}").body
    assert part in whole
    assert [record.sequence for record in RecordReader().feed(part)] == list(range(18, 204))
    assert site.ask("GET", "/v1/log/frames?after=400&last=400") == (200, b"")
    places = site.good("GET", "/v1/log/places?after=0&last=400")["places"]
    assert len(places) > 5
    for sequence, size in places:
        assert next(RecordReader().feed(whole[size:])).sequence == sequence
    assert [place for place in places if 17 < place[0] <= 203] == site.good("GET", "/v1/log/places?after=17&last=203")[
        "places"
    ]


def test_topic_log_range_that_is_invalid_or_of_another_epoch_is_rejected(site: Site) -> None:
    site.publish("a", 1, 2, 3)
    assert site.ask("GET", "/v1/log/frames?after=0&last=4").refusal == (400, "bad_input", "last")
    assert site.ask("GET", "/v1/log/frames?after=3&last=2").refusal == (400, "bad_input", "after")
    assert site.ask("GET", "/v1/log/frames?last=2").refusal == (400, "bad_input", "after")
    assert site.ask("GET", "/v1/log/frames?after=0&epoch=00").refusal == (409, "wrong_epoch", "epoch")
    assert site.ask("GET", "/v1/log/places?after=0&epoch=00").refusal == (409, "wrong_epoch", "epoch")


def trimmed(folder: Path, before: int) -> int:
    """The log loses its beginning; where it begins now."""
    with SegmentLog(folder / "topics", SMALL) as log:
        return log.trim(before).first


def test_retention_error_names_the_requested_and_the_first_kept_sequence(site: Site) -> None:
    for _ in range(200):
        site.publish("a", *("x" * 1000 for _ in range(10)))
    site.server.stop()
    first = trimmed(site.folder, 1500)
    site.again()
    assert 1 < first <= 1500
    for path in ("/v1/log/frames?after=7", "/v1/topics/a/records?fromSeq=8", "/v1/topics/a/events?fromSeq=8",
                 "/v1/log/places?after=7"):  # fmt: skip
        answer = site.ask("GET", path)
        assert answer.refusal[:2] == (410, "retired")
        assert (answer.document["error"]["asked"], answer.document["error"]["first"]) == (8, first)
    frames = site.ask("GET", f"/v1/log/frames?after={first - 1}").body
    assert next(RecordReader().feed(frames)).sequence == first
    epoch = site.good("GET", "/v1/log")["epoch"]
    assert site.ask("PUT", "/v1/cursors/q", {"sequence": 5, "epoch": epoch}).refusal[:2] == (410, "retired")


def test_topic_routes_answer_404_on_a_server_without_topics(tmp_path: Path) -> None:
    server = HttpServer(MemoryStore(), SystemClock()).start()
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as line:
        for path in ("/v1/log", "/v1/topics", "/v1/topics/a/records", "/v1/topics/events", "/v1/cursors"):
            line.request("GET", path)
            response = line.getresponse()
            assert (response.status, json.loads(response.read())["error"]["code"]) == (404, "not_found")
    server.stop()


# -- cursors ----------------------------------------------------------------------------------------------------------


def test_cursor_is_set_listed_deleted_and_survives_a_restart(site: Site) -> None:
    site.publish("a", 1, 2, 3)
    epoch = site.good("GET", "/v1/log")["epoch"]
    assert site.good("PUT", "/v1/cursors/q", {"sequence": 2, "epoch": epoch, "filter": "a"})["sequence"] == 2
    site.again()
    assert site.good("GET", "/v1/cursors/q")["filter"] == "a"
    assert site.good("PUT", "/v1/cursors/q", {"sequence": 1})["sequence"] == 1
    assert [one["name"] for one in site.good("GET", "/v1/cursors")["cursors"]] == ["q"]
    assert site.ask("PUT", "/v1/cursors/q", {"sequence": 4}).refusal == (400, "bad_input", "sequence")
    assert site.ask("PUT", "/v1/cursors/q", {"sequence": 1, "epoch": "0"}).refusal == (409, "wrong_epoch", "epoch")
    assert site.good("DELETE", "/v1/cursors/q?dryRun=true") == {"dropped": True, "dryRun": True}
    assert site.good("GET", "/v1/cursors/q")["sequence"] == 1
    assert site.good("DELETE", "/v1/cursors/q") == {"dropped": True, "dryRun": False}
    assert site.ask("DELETE", "/v1/cursors/q?dryRun=true").status == 404
    assert site.ask("GET", "/v1/cursors/q").status == site.ask("DELETE", "/v1/cursors/q").status == 404


# -- following --------------------------------------------------------------------------------------------------------


def test_topic_events_continue_from_history_to_live(site: Site) -> None:
    site.publish("a", 1, 2)
    events = site.follow("/v1/topics/a/events?fromSeq=1")
    assert events.records(2) == [(1, "a", 1), (2, "a", 2)]
    site.publish("b", "not for it")
    site.publish("a", {"n": "three\n"})
    assert events.records(1) == [(4, "a", {"n": "three\n"})]


def test_topic_events_begin_with_new_records_by_default(site: Site) -> None:
    site.publish("a", 1)
    events = site.follow("/v1/topics/events?topics=a,b.*")
    hello = events.next()
    assert (hello["event"], json.loads(hello["data"])["next"]) == ("hello", 2)
    site.publish("b.c", 2)
    site.publish("c", 3)
    site.publish("a", 4)
    assert events.records(2) == [(2, "b.c", 2), (4, "a", 4)]


def test_topic_events_resumed_by_last_event_id_miss_nothing_over_a_restart(site: Site) -> None:
    """Also over a restart of the server, and however much was published meanwhile."""
    site.publish("a", *range(1, 11))
    events = site.follow("/v1/topics/a/events?fromSeq=1")
    seen = [sequence for sequence, _, _ in events.records(10)]
    epoch = site.good("GET", "/v1/log")["epoch"]
    site.publish("b", *range(5000))
    site.publish("a", *range(3000))
    site.again()
    site.publish("a", "last")
    events = site.follow("/v1/topics/events?topics=a", f"{epoch}-{seen[-1]}")
    found = events.records(3001)
    assert [sequence for sequence, _, _ in found] == [*range(5011, 8012)]
    assert found[-1][2] == "last"


def test_topic_events_with_an_invalid_start_or_a_wrong_epoch_are_rejected(site: Site) -> None:
    site.publish("a", 1)
    epoch = site.good("GET", "/v1/log")["epoch"]
    assert site.ask("GET", "/v1/topics/a/events", last_event_id=f"{'0' * 32}-1").refusal == (
        409,
        "wrong_epoch",
        "epoch",
    )
    assert site.ask("GET", "/v1/topics/a/events", last_event_id="nonsense").refusal[2] == "Last-Event-ID"
    assert site.ask("GET", f"/v1/topics/a/events?after={epoch}-2").refusal[2] == "Last-Event-ID"
    assert site.ask("GET", "/v1/topics/a/events?fromSeq=3").refusal == (400, "bad_input", "fromSeq")
    assert site.ask("GET", "/v1/topics/events?topics=[").refusal == (400, "bad_input", "topics")


def test_topic_events_end_with_bye_when_the_server_stops(site: Site) -> None:
    site.publish("a", 1)
    events = site.follow("/v1/topics/a/events?fromSeq=1")
    assert events.records(1)
    site.server.do(site.server.api.stop)
    assert events.next()["event"] == "bye"


# -- batches ----------------------------------------------------------------------------------------------------------


def test_exactly_once_batch_is_committed_once(site: Site) -> None:
    rows = [NewRecord("queue:mail", b'{"n":1}'), NewRecord("topic:trades", b"7", "k")]
    data = encode_batch(rows, 1, 1, {}, synced=False).data
    piece = site.good("PUT", "/v1/batches/job/0/stages/task-1/0", data, content_type=FRAMES)
    assert piece == {"rows": 2, "checksum": crc32(data)}
    stages = {"stages": [{"id": "task-1", "pieces": 1, "rows": 2, "checksum": crc32(data)}]}
    first = site.good("POST", "/v1/batches/job/0/commit", stages)
    again = site.good("POST", "/v1/batches/job/0/commit", stages)
    assert (first["first"], again["first"], first["step"]) == (True, False, "done")
    assert (first["queueRows"], first["topicRows"]) == (again["queueRows"], again["topicRows"]) == (1, 1)
    assert [one["batch"] for one in site.good("GET", "/v1/batches")["batches"]] == [0]
    assert site.good("GET", "/v1/log")["last"] == 1
    frames = site.ask("GET", "/v1/queues/mail/records").body
    assert [one.payload for one in RecordReader().feed(frames)] == [b'{"n":1}']
