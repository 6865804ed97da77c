"""``topic publish|subscribe|list|show|tail|replay|trim``, through a server and on the log itself."""

import base64
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.cli import Cli, Result
from tests.support.segment_log import cut_tail
from tests.support.server import RunningServer
from tests.support.topic_server import SMALL
from tests.support.wait import PATIENCE
from yirangmq.cli.commands.topic_io import PRINT_RECORDS
from yirangmq.client.connect import connect
from yirangmq.core.topics import NewRecord
from yirangmq.format.json_codec import dumps, loads
from yirangmq.stores.log.log import SegmentLog
from yirangmq.stores.memory import MemoryStore
from yirangmq.topics.ports import TopicSettings

WAYS = ("server", "log")
YIRANGMQ = [sys.executable, "-m", "yirangmq"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    made = RunningServer(MemoryStore(), tmp_path, topics=TopicSettings(masked=("a", "b"))).start()
    yield made
    made.stop()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Options that say where the topics are."""
    if request.param == "log":
        return "--log topics --durability os"
    server: RunningServer = request.getfixturevalue("server")
    return f"--store {server.unix}"


@pytest.fixture
def topic(cli: Cli, way: str) -> Cli:
    """``topic("publish a 1")``; fails unless it ends well."""

    def call(line: str, *more: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = cli(f"topic {line} {way}", *more, stdin=stdin)
        assert result.code == code, result
        return result

    return call


def fill(topic: Cli, count: int, *names: str) -> None:
    """Records 1 to count, their payload their number, their topics by turns."""
    names = names or ("a", "b")
    lines = [dumps({"topic": names[n % len(names)], "payload": n + 1}) for n in range(count)]
    topic("publish --ndjson --file -", stdin=b"\n".join(lines))


def numbers(result: Result) -> list[int]:
    return [line["sequence"] for line in result.lines]


# -- publish ----------------------------------------------------------------------------------------------------------


def test_cli_topic_publish_keeps_key_headers_and_payload_of_a_record(topic: Cli) -> None:
    assert topic("publish a --key k --header h=v=w --header x=", '{"n":  1}').out == "published 1, a#1\n"
    found = topic("publish b --payload two --json").json
    assert (found["topic"], found["sequence"], found["topicSequence"], found["resent"]) == ("b", 2, 1, False)
    first, second = topic("tail --json").lines
    assert (first["topic"], first["key"], first["headers"]) == ("a", "k", {"h": "v=w", "x": ""})
    assert first["payload"] == {"n": 1}
    assert base64.b64decode(second["payloadBase64"]) == b"two"
    assert topic("tail --raw").out == '{"n":  1}\ntwo\n'


def test_cli_topic_publish_of_files_makes_one_record_each(topic: Cli, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\x00\xff\n")
    result = topic("publish a --file one --file - --json", stdin=b"from stdin")
    assert [line["sequence"] for line in result.lines] == [1, 2]
    first, second = topic("tail --json").lines
    assert base64.b64decode(first["payloadBase64"]) == b"\x00\xff\n"
    assert base64.b64decode(second["payloadBase64"]) == b"from stdin"


@pytest.mark.parametrize("source", ["-", "lines.txt"])
def test_cli_topic_publish_lines_makes_one_record_per_line_in_order(topic: Cli, tmp_path: Path, source: str) -> None:
    text = b"".join(b"%d\r\n\n" % n for n in range(2500)) + b"the end"
    (tmp_path / "lines.txt").write_bytes(text)
    result = topic(f"publish a --lines --file {source} --key k --json", stdin=text)
    assert result.json == {"ok": True, "published": 2501, "resent": 0, "last": 2501}
    shown = topic("replay --raw").out.splitlines()
    assert shown == [str(n) for n in range(2500)] + ["the end"]


def test_cli_topic_replay_json_can_be_published_again_as_ndjson(topic: Cli, tmp_path: Path) -> None:
    topic("publish a --key k --header h=v", '{"n": 1}')
    topic("publish b", "not json")
    printed = topic("replay --json").out.encode()
    (tmp_path / "records.jsonl").write_bytes(printed)
    assert topic("publish --ndjson --file records.jsonl").out == "published 2 records, the last is 4\n"
    lines = topic("replay --json").lines
    for one in lines:
        del one["sequence"], one["topicSequence"], one["at"], one["atNs"]
    assert lines[:2] == lines[2:]


def test_cli_topic_publish_ndjson_lines_take_missing_fields_from_the_options(topic: Cli) -> None:
    given = b'{"payload": 1}\n{"bare": true}\n{"topic": "b", "key": "own", "headers": {"h": "own"}, "payload": 2}\n'
    topic("publish a --ndjson --file - --key k --header h=v", stdin=given)
    found = [(one["topic"], one["key"], one["headers"], one["payload"]) for one in topic("tail --json").lines]
    assert found == [
        ("a", "k", {"h": "v"}, 1),
        ("a", "k", {"h": "v"}, {"bare": True}),
        ("b", "own", {"h": "own"}, 2),
    ]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("publish a", "payload"),
        ("publish a 1 --payload 2", "payload"),
        ("publish --payload 1", "topic"),
        ("publish a/b 1", "topic"),
        ("publish a 1 --header h", "--header"),
        ("publish a 1 --lines", "--lines"),
        ("publish a 1 --ndjson", "--ndjson"),
        ("publish a --lines --ndjson --file -", "--ndjson"),
        ("publish a --file missing", "file"),
        ("subscribe --from-seq 0", "--from-seq"),
        ("subscribe --from-time yesterday", "--from-time"),
        ("subscribe --from-seq 1 --from-beginning", "--from-seq"),
        ("subscribe --anew", "--anew"),
        ("subscribe --limit 0", "--limit"),
        ("subscribe [", "topics"),
        ("tail -n -1", "-n"),
        ("replay --to mail", "--to"),
        ("replay --to queue:a/b", "--to"),
        ("replay --from-seq 1 --from-time 1", "--from-time"),
        ("trim", "--before-seq"),
        ("trim --before-seq 1 --before-time 1d", "--before-seq"),
    ],
)
def test_cli_topic_bad_options_are_refused_by_name(cli: Cli, server: RunningServer, line: str, field: str) -> None:
    with connect(server.unix) as client:
        client.topics.publish("there", 1)
    result = cli(f"topic {line} --json --store {server.unix}")
    assert (result.code, result.complaint["field"]) == (2, field), result


def test_cli_topic_publish_ndjson_file_with_a_bad_line_names_it_and_publishes_nothing(
    topic: Cli, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_bytes(
        b'{"topic": "a", "payload": 1}\n' * 1500 + b'{"topic": "a", "payload": 1, "keey": 2}\n'
    )
    result = topic("publish --ndjson --file bad", code=2)
    assert "bad line 1501: keey: is not a member of a record" in result.err
    assert "nothing was published" in result.err
    assert "no topics yet" in topic("tail").err


def test_cli_topic_publish_ndjson_stream_with_a_bad_line_reports_how_many_are_published(topic: Cli) -> None:
    result = topic("publish a --ndjson --file -", stdin=b"1\n" * 1000 + b"{\n", code=2)
    assert "- line 1001" in result.err
    assert "1000 before it are published" in result.err
    assert numbers(topic("tail -n 1 --json")) == [1000]


# -- list, show, tail -------------------------------------------------------------------------------------------------


def test_cli_topic_commands_without_topics_say_so_and_create_no_file(cli: Cli, tmp_path: Path) -> None:
    for line in ("topic list", "topic tail"):
        result = cli(line)
        assert result.code == 0
        assert "no topics yet" in result.err
    assert cli("topic subscribe --idle 0").code == 3
    assert cli("topic show a").code == 3
    assert cli("topic trim --before-seq 5").code == 3
    assert list(tmp_path.iterdir()) == []


def test_cli_topic_list_shows_feed_state_and_topic_positions(topic: Cli, way: str) -> None:
    fill(topic, 5)
    shown = topic("list").out
    assert ", holds 1 to 5\n" in shown
    assert shown.startswith("feed online, epoch " if "store" in way else "feed opened directly, epoch ")
    about = topic("list --json").json
    rows = [(row["topic"], row["topicSequence"], row["sequence"], row["records"]) for row in about["topics"]]
    assert rows == [("a", 3, 5, 3), ("b", 2, 4, 2)]
    assert (about["first"], about["last"], about["gaps"], about["following"]) == (1, 5, [], [])


def test_cli_topic_show_prints_a_topic_and_its_subscribers(topic: Cli) -> None:
    fill(topic, 4)
    topic("subscribe a --name ledger --from-beginning --limit 1")
    topic("subscribe b* --name other --from-beginning --limit 1")
    shown = topic("show a")
    assert "last: 3 a#2 " in shown.out
    assert "ledger" in shown.out
    assert "other" not in shown.out
    found = topic("show b --json").json
    assert [(one["name"], one["state"], one["confirmed"], one["lag"]) for one in found["following"]] == [
        ("other", "offline", 2, 1)
    ]
    assert "c has no subscribers" in topic("publish c 1").err + topic("show c").err
    assert topic("show nothing", code=3).err.startswith("yirangmq: not_found: ")


def test_cli_topic_tail_prints_the_last_records_of_the_wanted_topics(topic: Cli) -> None:
    fill(topic, 3000)
    topic("publish rare 1")
    fill(topic, 2999)
    assert numbers(topic("tail --json")) == list(range(5991, 6001))
    assert numbers(topic("tail -n 2 --json")) == [5999, 6000]
    assert numbers(topic("tail rare a -n 3 --json")) == [5996, 5998, 6000]
    assert numbers(topic("tail rare --json")) == [3001]
    assert numbers(topic("tail b -n 4000 --json"))[0] == 2
    assert numbers(topic("tail -n 0 --json")) == []
    assert numbers(topic("tail nothing --json")) == []


def test_cli_status_shows_the_feed_and_its_subscribers(cli: Cli, server: RunningServer) -> None:
    at = f"--store {server.unix}"
    assert "feed online" not in cli(f"status {at}").out
    with connect(server.unix) as client:
        client.topics.publish_many([("a", 1), ("b", 2)])
        with client.topics.subscribe("a", name="ledger", start="beginning") as following:
            assert following.next(30) is not None
            shown = cli(f"status {at}").out
            assert "\nfeed online, epoch " in shown
            assert "ledger" in shown
            found = cli(f"status --json {at}").json
            assert (found["topics"]["state"], found["topics"]["last"]) == ("online", 2)
            [row] = found["following"]
            assert (row["name"], row["state"], row["sequence"]) == ("ledger", "online", 2)
    assert cli(f"status --json {at}").json["following"][0]["state"] == "offline"
    assert cli("status --json").json["topics"] is None


# -- subscribe --------------------------------------------------------------------------------------------------------


def test_cli_topic_subscribe_starts_at_the_beginning_a_sequence_a_time_or_the_end(topic: Cli) -> None:
    fill(topic, 5)
    before = datetime.now(UTC).isoformat()
    fill(topic, 5)
    end = "--idle 1 --json"
    assert numbers(topic(f"subscribe --from-beginning {end}")) == list(range(1, 11))
    assert numbers(topic(f"subscribe --from-seq 7 --limit 2 {end}")) == [7, 8]
    assert numbers(topic(f"subscribe --from-time {before} {end}")) == [6, 7, 8, 9, 10]
    assert numbers(topic(f"subscribe --from-time 1h a {end}")) == [1, 3, 5, 6, 8, 10]
    assert numbers(topic(f"subscribe --from-time 1 b {end}")) == [2, 4, 7, 9]
    assert numbers(topic(f"subscribe {end}")) == []
    assert topic("subscribe --from-seq 12 --idle 0", code=2).err.startswith("yirangmq: bad_input: ")


@pytest.mark.parametrize("kept", ["--name ledger", "--cursor file"])
def test_cursor_of_cli_topic_subscribe_continues_after_the_last_printed_record(topic: Cli, kept: str) -> None:
    fill(topic, 10)
    end = "--idle 1 --json"
    assert numbers(topic(f"subscribe {kept} --from-beginning --limit 3 {end}")) == [1, 2, 3]
    assert numbers(topic(f"subscribe {kept} --limit 2 {end}")) == [4, 5]
    assert numbers(topic(f"subscribe {kept} {end}")) == [6, 7, 8, 9, 10]
    fill(topic, 1)
    assert numbers(topic(f"subscribe {kept} {end}")) == [11]
    assert numbers(topic(f"subscribe {kept} --anew --from-seq 9 {end}")) == [9, 10, 11]


def test_cli_topic_subscribe_mask_works_on_a_server_and_is_refused_on_a_log(cli: Cli, server: RunningServer) -> None:
    with connect(server.unix) as client:
        client.topics.publish_many([("a", 1), ("b", 2), ("c", 3)])
    result = cli(f"topic subscribe --mask 2 --from-beginning --idle 1 --json --store {server.unix}")
    assert numbers(result) == [2]
    result = cli("topic subscribe --mask 2 --log topics")
    assert (result.code, "--mask" in result.err) == (2, True)


# -- replay, trim -----------------------------------------------------------------------------------------------------


def test_cli_topic_replay_prints_a_range_by_sequence_or_time(topic: Cli) -> None:
    fill(topic, 5)
    middle = datetime.now(UTC).isoformat()
    fill(topic, 5)
    assert numbers(topic("replay --json")) == list(range(1, 11))
    assert numbers(topic("replay a --from-seq 3 --to-seq 8 --json")) == [3, 5, 6, 8]
    assert numbers(topic(f"replay --to-time {middle} --json")) == [1, 2, 3, 4, 5]
    assert numbers(topic(f"replay --from-time {middle} --json")) == [6, 7, 8, 9, 10]
    assert numbers(topic("replay nothing --json")) == []
    result = topic("replay a --from-seq 3 --dry-run --json").json
    assert (result["records"], result["dryRun"], result["last"]) == (5, True, 10)


def test_cli_topic_replay_to_a_topic_adds_the_origin_header(topic: Cli) -> None:
    topic("publish a --key k --header h=v", "1")
    fill(topic, 2500, "b")
    epoch = topic("list --json").json["epoch"]
    assert "2,501 records" in topic("replay --to topic:again --dry-run").out
    assert topic("list --json").json["last"] == 2501
    assert topic("replay --to topic:again").out == "replayed to topic:again: 2,501 records from 1 to 2501\n"
    found = topic("replay again --json").lines
    assert [one["payload"] for one in found] == [1, *range(1, 2501)]
    assert (found[0]["key"], found[0]["headers"]) == ("k", {"h": "v", "replayed-from": f"{epoch}/1"})


def test_dedup_of_cli_topic_replay_to_a_queue_stores_records_once_unless_new_ids(
    topic: Cli, cli: Cli, way: str
) -> None:
    topic("publish a --key k --header h=v", '{"n": 1}')
    topic("publish a", "not json")
    result = topic("replay a --to queue:mail --json").json
    assert (result["records"], result["known"]) == (2, 0)
    topic("publish a", "3")
    assert topic("replay a --to queue:mail").out == (
        "replayed to queue:mail: 1 record from 1 to 3; 2 existed already (--new-ids replays them too)\n"
    )
    assert topic("replay a --to queue:mail --new-ids --json").json["records"] == 3
    store = way if "store" in way else ""
    messages = [one["message"] for one in cli(f"consume -q mail --json {store}").lines]
    assert len(messages) == 6
    assert messages[0]["payload"] == {"n": 1}
    about = {"h": "v", "key": "k", "topic": "a", "sequence": 1, "topicSequence": 1}
    assert {name: messages[0]["attributes"][name] for name in about} == about
    assert base64.b64decode(messages[1]["payloadBase64"]) == b"not json"


def long_log(folder: Path) -> None:
    with SegmentLog(folder, SMALL) as log:
        for _ in range(20):
            log.append([NewRecord("a", bytes(1000))] * 20)


def test_retention_by_cli_topic_trim_drops_records_and_names_late_subscribers(
    topic: Cli, way: str, server: RunningServer, tmp_path: Path
) -> None:
    server.stop()
    long_log(tmp_path / "topics")
    if "store" in way:
        server.start()
    topic("subscribe --name late --from-seq 50 --limit 1")
    would = topic("trim --before-seq 200 --dry-run --json").json
    assert (would["before"], would["late"], would["dryRun"]) == (200, ["late"], True)
    assert 1 < would["first"] <= 200
    assert topic("list --json").json["first"] == 1
    result = topic("trim --before-seq 200")
    assert f"; the log begins at {would['first']}\n" in result.out
    assert "late needed some of them" in result.err
    assert topic("list --json").json["first"] == would["first"]
    assert topic("subscribe --from-seq 1", code=3).err.startswith("yirangmq: retired: ")
    would, done = (topic(f"trim --before-time 0s --json {more}").json for more in ("--dry-run", ""))
    assert {**would, "dryRun": False} == {**done, "dryRun": False}
    assert done["first"] == 401


def test_cli_topic_publish_on_a_log_that_lost_its_end_begins_a_new_epoch_and_says_so(cli: Cli, tmp_path: Path) -> None:
    """P-30: also without a server no sequence is assigned again that a durable subscriber has confirmed."""
    for number in range(3):
        assert cli(f"topic publish a {number} --log topics").code == 0
    assert numbers(cli("topic subscribe --name n --from-beginning --idle 0 --json --log topics")) == [1, 2, 3]
    epoch = cut_tail(tmp_path / "topics")
    result = cli("topic publish a 9 --json --log topics")
    assert (result.code, result.json["sequence"]) == (0, 4)
    assert result.json["epoch"] != epoch
    assert "at least up to 3, which subscriber n has confirmed" in result.err
    refused = cli("topic subscribe --name n --idle 0 --log topics")
    assert refused.code == 5
    assert epoch in refused.err


def test_cli_topic_on_a_log_held_by_a_server_reads_and_refuses_writes(cli: Cli, server: RunningServer) -> None:
    with connect(server.unix) as client:
        client.topics.publish_many([("a", n) for n in range(3)])
        assert numbers(cli("topic tail --json --log topics")) == [1, 2, 3]
        assert cli("topic list --log topics").code == 0
        assert cli("topic publish a 1 --log topics").code == 5
        assert cli("topic subscribe --name n --log topics").code == 5
        assert cli("topic trim --before-seq 2 --log topics").code == 5


def test_cli_topic_tune_shows_and_changes_settings_of_a_running_server(cli: Cli, server: RunningServer) -> None:
    at = f"--store {server.unix}"
    assert cli(f"topic tune {at}").out == "recovery_workers 2\nbuffer_bytes 2097152\nlag_limit 1000\n"
    found = cli(f"topic tune --recovery-workers 5 --lag-limit 0 --json {at}").json
    assert found == {"ok": True, "recovery_workers": 5, "buffer_bytes": 2097152, "lag_limit": 0}
    result = cli(f"topic tune --buffer-bytes 1 --json {at}")
    assert (result.code, result.complaint["field"]) == (2, "buffer_bytes")
    assert cli("topic tune").code == 10


# -- as processes -----------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_cli_topic_subscribe_confirms_what_a_slow_reader_of_its_output_has_got(
    server: RunningServer, number: signal.Signals, code: int
) -> None:
    """While it prints a batch, and when a signal ends it in the middle of one; and no record that is not printed."""
    count, payload = 20_000, "x" * 50
    line = [*YIRANGMQ, "topic", "subscribe", "a", "--name", "ledger", "--from-beginning", "--json"]
    line += ["--store", server.unix]
    with connect(server.unix) as client:
        client.topics.publish_many([("a", payload) for _ in range(count)])

        def confirmed() -> int:
            return int(next((row["confirmed"] for row in client.topics.subscribers()), 0))

        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as printing:
            assert printing.stdout is not None
            lines = [printing.stdout.readline()]
            while min(confirmed() for _ in range(10)) < 100:
                lines.append(printing.stdout.readline())
                assert len(lines) < 2000, "one read of the network has about as many"
            os.kill(printing.pid, number)
            lines += printing.stdout.readlines()
            err = printing.communicate(timeout=PATIENCE)[1]
        whole = [one for one in lines if one.endswith(b"\n")]
        assert printing.returncode == code, err
        assert [loads(one)["sequence"] for one in whole] == [*range(1, len(whole) + 1)]
        at = confirmed()
        assert at <= len(whole) < count
        assert at >= len(whole) - 2 * PRINT_RECORDS
        again = subprocess.run([*line, "--limit", "1"], capture_output=True, check=True, timeout=PATIENCE)
        assert loads(again.stdout)["sequence"] == at + 1


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_cli_topic_tail_follow_prints_new_records_and_stops_on_a_signal(
    server: RunningServer, number: signal.Signals, code: int
) -> None:
    line = [*YIRANGMQ, "topic", "tail", "-f", "--raw", "--store", server.unix]
    with connect(server.unix) as client:
        client.topics.publish("a", "first")
        follower = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert follower.stdout is not None
        assert follower.stdout.readline() == b'"first"\n'
        client.topics.publish("a", "second")
        assert follower.stdout.readline() == b'"second"\n'
    os.kill(follower.pid, number)
    out, err = follower.communicate(timeout=PATIENCE)
    assert (follower.returncode, out, err) == (code, b"", b"")


@pytest.mark.process
def test_cli_topic_publish_lines_sends_each_line_while_the_pipe_pauses(server: RunningServer) -> None:
    line = [*YIRANGMQ, "topic", "publish", "a", "--lines", "--file", "-", "--store", server.unix]
    with connect(server.unix, timeout=PATIENCE) as client, client.topics.subscribe() as following:
        publisher = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert publisher.stdin is not None
        for text in (b"one", b"two"):
            publisher.stdin.write(text + b"\n")
            publisher.stdin.flush()
            record = following.next(30)
            assert record is not None
            assert record.payload == text
        assert publisher.communicate(timeout=PATIENCE)[0] == b"published 2 records, the last is 2\n"


@pytest.mark.process
def test_progress_bar_is_drawn_by_a_long_topic_replay(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "topics") as log:
        for _ in range(40):
            log.append([NewRecord("a", bytes(100))] * 1000)
    screen, end = pty.openpty()
    line = [*YIRANGMQ, "topic", "replay", "--to", "topic:b", "--log", "topics"]
    replaying = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=end)
    os.close(end)
    shown = b""
    try:
        while data := os.read(screen, 1 << 16):
            shown += data
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(screen)
    assert replaying.communicate(timeout=PATIENCE)[0] == b"replayed to topic:b: 40,000 records from 1 to 40000\n"
    assert b"replaying [" in shown


def test_cli_topic_forget_deletes_the_cursor_of_a_durable_subscriber(topic: Cli) -> None:
    """Through a server and on a log directly."""
    topic("publish a 1")
    topic("publish a 2")
    topic("subscribe a --name ledger --from-beginning --limit 1")
    would = topic("forget ledger --dry-run --json").json
    assert would == {"ok": True, "name": "ledger", "confirmed": 1, "lag": 1, "dryRun": True}
    assert [one["name"] for one in topic("show a --json").json["following"]] == ["ledger"]
    assert topic("forget ledger").out == "forgotten: ledger, confirmed up to 1, 1 records behind\n"
    assert topic("show a --json").json["following"] == []
    for more in ("", " --dry-run"):
        assert topic(f"forget ledger --json{more}", code=3).complaint["code"] == "not_found"
