"""``consume``, ``ack``, ``nack``, ``extend``, on both backends."""

import signal
import sys

import pytest

from tests.support.cli import Cli, Published


def test_cli_consume_prints_and_acks_messages(at: Cli, published: Published) -> None:
    ids = published("mail", '{"n": 1}', '{"n": 2}')
    shown = at("consume -q mail").out
    assert shown.count("-- ") == 2
    assert all(id in shown for id in ids)
    counts = at("status -q mail --json").json["queues"][0]
    assert (counts["ready"], counts["leased"], counts["done"]) == (0, 0, 2)


def test_cli_consume_json_is_one_line_per_message_with_lease_and_policy(at: Cli, published: Published) -> None:
    (id,) = published("mail", '{"messageId": "m", "type": "t", "payload": {\n"pretty": [1,\r\n2]}}')
    line = at("consume -q mail --json --consumer-id me --lease-seconds 60").json
    assert line["message"]["messageId"] == id
    assert line["message"]["payload"] == {"pretty": [1, 2]}
    assert (line["lease"]["consumerId"], line["lease"]["attempt"]) == ("me", 1)
    assert line["policy"]["visibilityTimeoutSec"] == 30


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_cli_consume_max_limits_the_messages_whatever_the_batch_size(at: Cli, published: Published, batch: int) -> None:
    published("mail", *"12345")
    assert at(f"consume -q mail --raw --max 3 --batch {batch}").out == "1\n2\n3\n"
    assert at("status -q mail --json").json["queues"][0]["ready"] == 2


def test_cli_consume_of_an_empty_queue_is_an_error_only_with_fail_empty(at: Cli) -> None:
    said = at("consume -q mail").err
    assert "nothing to consume in mail" in said
    assert "to stay and wait for messages, add --follow" in said
    assert said.count("\n") == 1
    assert at("consume -q mail --fail-empty --json", code=6).out == ""


def test_cli_consume_of_an_empty_queue_reports_the_likely_reason(at: Cli, published: Published) -> None:
    assert "nothing to consume in mail: there is no such queue yet; to stay" in at("consume -q mail").err
    published("mail", "1", "2")
    assert "no such queue yet; did you mean mail?" in at("consume -q mali").err
    at("consume -q mail --no-ack --max 1")
    at("publish -q mail 3 --delay 60")
    at("queue pause mail")
    assert "nothing to consume in mail: it is paused; 'yirangmq queue resume mail'" in at("consume -q mail").err
    at("queue resume mail")
    at("consume -q mail --max 1")
    assert "nothing to consume in mail now: 1 leased, 1 delayed; to stay" in at("consume -q mail").err


def test_cli_consume_wait_ends_at_its_timeout(at: Cli) -> None:
    assert at("consume -q mail --wait 0.05 --fail-empty", code=6).out == ""


def test_cli_consume_wait_gets_a_delayed_message_when_it_is_due(at: Cli) -> None:
    at("publish -q mail --delay 0.2 1")
    assert at("consume -q mail --wait 20 --max 1 --raw").out == "1\n"


def test_cli_consume_of_a_dead_letter_queue_name_explains_what_it_shows(at: Cli, published: Published) -> None:
    published("mail", "1")
    assert "shows the dead letters of mail" in at("consume -q mail-dlq").err


def test_cli_consume_escapes_control_characters_of_a_payload(at: Cli) -> None:
    at("publish -q mail --raw --file -", stdin=b"\x1b[2Jred\x07\ttab\nline")
    assert "\\x1b[2Jred\\x07\ttab\nline" in at("consume -q mail").out


def test_cli_consume_and_peek_show_bytes_that_are_not_text_as_hex(at: Cli) -> None:
    at("publish -q mail --raw --file -", stdin=b"\xff" * 5000)
    shown = at("peek -q mail").out
    assert "5000 bytes: ff ff" in shown
    assert "5000 bytes: ff ff" in at("consume -q mail").out


def test_cli_ack_by_lease_id_settles_a_lease_left_open_and_may_be_repeated(at: Cli, published: Published) -> None:
    published("mail", "1")
    lease = at("consume -q mail --no-ack --json").json["lease"]["leaseId"]
    assert at("consume -q mail --raw").out == ""
    assert at(f"extend {lease} --seconds 60").out == f"extended {lease}\n"
    assert at(f"ack {lease}").out == f"acked {lease}\n"
    assert at(f"ack {lease}").out == f"acked {lease}\n"
    assert at("status -q mail --json").json["queues"][0]["done"] == 1


def test_cli_nack_delays_the_message_and_keeps_reason_and_text(at: Cli, published: Published) -> None:
    (id,) = published("mail", "1")
    lease = at("consume -q mail --no-ack --json").json["lease"]["leaseId"]
    answer = at(f"nack {lease} --reason TIMEOUT --text slow --json").json
    assert answer == {"ok": True, "did": "nacked", "results": [{"leaseId": lease, "ok": True}]}
    shown = at(f"show -q mail {id} --json").json
    assert (shown["state"], shown["reasonCode"], shown["failure"]["reasonMessage"]) == ("delayed", "TIMEOUT", "slow")


def test_cli_nack_with_a_delay_of_zero_makes_the_message_ready_at_once(at: Cli, published: Published) -> None:
    published("mail", "1")
    lease = at("consume -q mail --no-ack --json").json["lease"]["leaseId"]
    at(f"nack {lease} --delay 0")
    assert at("consume -q mail --json").json["lease"]["attempt"] == 2


def test_cli_ack_of_a_stale_lease_fails_and_the_other_leases_are_acked(at: Cli, published: Published) -> None:
    published("mail", "1", "2")
    first, second = (line["lease"]["leaseId"] for line in at("consume -q mail --no-ack --json").lines)
    at(f"nack {first} --delay 0")
    answer = at(f"ack {first} {second} --json", code=4).json
    assert [result["ok"] for result in answer["results"]] == [False, True]
    assert (answer["ok"], answer["results"][0]["code"]) == (False, "lease_expired")
    assert at(f"ack {first} {second} --json", code=4).complaint["code"] == "lease_expired"
    shown = at(f"ack {first} {second}", code=4)
    assert "yirangmq: lease_expired:" in shown.err
    assert shown.out == f"acked {second}\n"


def test_cli_ack_nack_and_extend_check_the_consumer_id_if_given(at: Cli, published: Published) -> None:
    published("mail", "1")
    lease = at("consume -q mail --no-ack --json --consumer-id me").json["lease"]["leaseId"]
    for verb in ("ack", "nack", "extend"):
        refused = at(f"{verb} {lease} --consumer-id you --json", code=4)
        assert refused.json["results"][0]["code"] == refused.complaint["code"] == "lease_mismatch"
        assert set(refused.complaint) == {"ok", "code", "error", "field"}
    assert at(f"ack {lease} --consumer-id me --json").json["ok"] is True


@pytest.mark.parametrize(
    ("line", "code", "problem"),
    [
        ("ack nonsense", 2, "bad_input"),
        ("ack 1-1 1-1", 2, "bad_input"),
        ("nack 1-1 --delay -1", 2, "bad_input"),
        ("nack 1-1 --reason BAD_WEATHER", 2, "bad_input"),
        ("extend 1-1 --seconds 0", 2, "bad_input"),
        ("consume -q mail --max x", 2, "bad_input"),
        ("consume -q mail --batch 0", 2, "bad_input"),
        ("consume -q mail --wait -1", 2, "bad_input"),
        ("consume -q mail --lease-seconds 0", 2, "bad_input"),
        ("consume -q mail --consumer-id 'a b'", 2, "bad_input"),
    ],
)
def test_cli_consume_ack_nack_and_extend_refuse_bad_input(
    at: Cli, published: Published, line: str, code: int, problem: str
) -> None:
    published("mail", "1")
    assert at(f"{line} --json", code=code).complaint["code"] == problem


def test_cli_ack_of_an_unknown_lease_is_not_found(at: Cli, published: Published) -> None:
    published("mail", "1")
    assert at("ack 99-1 --json", code=3).json["results"][0]["code"] == "not_found"


def test_cli_ack_without_a_store_is_an_error(at: Cli) -> None:
    assert "there is no store at" in at("ack 1-1", code=3).err


def test_cli_consume_restores_the_signal_handlers(at: Cli) -> None:
    before = signal.getsignal(signal.SIGTERM)
    at("consume -q mail")
    assert signal.getsignal(signal.SIGTERM) is before


class Torn:
    """A stdout that breaks when it is written to for the second time."""

    def __init__(self) -> None:
        self.buffer = self
        self.written: list[bytes] = []

    def write(self, data: bytes) -> int:
        if self.written:
            raise KeyboardInterrupt
        self.written.append(data)
        return len(data)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize("flag", ["", "--no-ack"])
def test_cli_consume_releases_messages_leased_but_not_printed(
    at: Cli, published: Published, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    published("mail", *"123")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Torn())
        at(f"consume -q mail --raw --batch 3 {flag}", code=130)
    counts = at("status -q mail --json").json["queues"][0]
    assert (counts["ready"], counts["leased"], counts["done"]) == ((3, 0, 0) if not flag else (2, 1, 0))
    assert {line["lease"]["attempt"] for line in at("consume -q mail --json").lines} == {1}
