"""``publish``, on both backends."""

import json
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.golden_files import golden


def test_cli_publish_of_json_text_prints_the_message_id(at: Cli) -> None:
    assert at("publish -q mail", '{"to": "ann"}').out.startswith("published ")
    answer = at("publish -q mail --json", '{"to": "bob"}').json
    assert answer == {
        "ok": True,
        "queue": "mail",
        "messageId": answer["messageId"],
        "duplicate": False,
        "refused": None,
    }
    shown = at(f"show -q mail --json {answer['messageId']}").json
    assert shown["message"]["payload"] == {"to": "bob"}


def test_cli_publish_takes_the_payload_from_an_option_a_file_or_stdin(at: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(b'{ "n": 2 }\n')
    at("publish -q mail --payload", '{"n": 1}')
    at("publish -q mail --file m.json")
    at("publish -q mail --file -", stdin=b'{"n": 3}')
    payloads = [line["message"]["payload"] for line in at("peek -q mail --json").lines]
    assert payloads == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_cli_publish_keeps_the_text_of_the_json_payload(at: Cli) -> None:
    at("publish -q mail", ' {"b": 1.50, "a": 1e3} ')
    assert at("consume -q mail --raw").out == '{"b": 1.50, "a": 1e3}\n'


def test_cli_publish_options_override_fields_of_an_envelope(at: Cli) -> None:
    envelope = (
        '{"messageId": "old", "type": "old", "attributes": {"a": 1, "b": 2}, "custom": [1], "payload": {"x": 1.0}}'
    )
    at(
        "publish -q mail --id m-1 --type new --type-version 2 --trace-id t-1 --dedup-key k-1 --priority 0 "
        "--attribute b=3 --attribute c=text --attribute",
        'd={"e": true}',
        envelope,
    )
    message = at("show -q mail m-1 --json").json["message"]
    del message["timestamp"]
    assert message == {
        "messageId": "m-1",
        "queue": "mail",
        "type": "new",
        "version": 2,
        "traceId": "t-1",
        "deduplicationKey": "k-1",
        "custom": [1],
        "attributes": {"a": 1, "b": 3, "c": "text", "d": {"e": True}, "priority": 0},
        "payload": {"x": 1.0},
    }


LOOKS_LIKE_ONE = '{"type": "order", "version": 3, "payload": {"x": 1}}'
"""A user's document that has members of an envelope, and no ``messageId``."""


def payloads(at: Cli) -> list[object]:
    return [line["message"]["payload"] for line in at("peek -q mail --json").lines]


def test_cli_publish_without_message_id_takes_the_whole_document_as_payload(at: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(LOOKS_LIKE_ONE)
    at("publish -q mail", LOOKS_LIKE_ONE)
    at("publish -q mail --file m.json")
    at("publish -q mail --file m.json --lines")
    at("publish -q mail --type other --file m.json")
    assert payloads(at) == [json.loads(LOOKS_LIKE_ONE)] * 4


@pytest.mark.parametrize("form", ["--envelope --file m.json", "--file m.json --lines --envelope", "--envelope"])
def test_cli_publish_envelope_option_takes_an_envelope_without_message_id(at: Cli, tmp_path: Path, form: str) -> None:
    (tmp_path / "m.json").write_text(LOOKS_LIKE_ONE)
    at(f"publish -q mail {form}", *([LOOKS_LIKE_ONE] if form == "--envelope" else []))
    message = at("peek -q mail --json").json["message"]
    assert (message["type"], message["version"], message["payload"]) == ("order", 3, {"x": 1})


@pytest.mark.parametrize("form", ["--payload --file m.json", "--file m.json --lines --payload", "--payload"])
def test_cli_publish_payload_option_takes_an_envelope_as_payload(at: Cli, tmp_path: Path, form: str) -> None:
    envelope = '{"messageId": "m-1", "payload": 1}'
    (tmp_path / "m.json").write_text(envelope)
    at(f"publish -q mail {form}", *([envelope] if form == "--payload" else []))
    assert payloads(at) == [json.loads(envelope)]


def test_cli_publish_of_the_specified_example_is_an_envelope(at: Cli, tmp_path: Path) -> None:
    (tmp_path / "message.json").write_bytes(golden("envelope-example.json"))
    answer = at("publish -q telemetry --file message.json --json").json
    assert answer["messageId"] == "9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"
    assert at("peek -q telemetry --json").json["message"]["payload"] == {"temp": 36.1, "rpm": 1200}


def test_cli_publish_options_wrap_a_bare_payload_in_an_envelope(at: Cli) -> None:
    at("publish -q mail --id m-1 --type note", '{"payload": 1}')
    message = at("show -q mail m-1 --json").json["message"]
    assert (message["type"], message["payload"]) == ("note", {"payload": 1})


def test_group_messages_are_delivered_one_at_a_time_and_targeted_messages_only_to_their_consumer(
    at: Cli, tmp_path: Path
) -> None:
    (tmp_path / "two").write_bytes(b'"1"\n{"messageId": "m-2", "groupId": "theirs", "payload": 2}\n')
    at("publish -q mail --file two --lines --group g")
    at("publish -q mail --raw --file two --id m-3 --group g --target anna")
    assert [line["message"]["groupId"] for line in at("peek -q mail --json").lines] == ["g"]
    assert at("show -q mail m-2 --json").json["state"] == "held"
    for _ in range(2):
        at("consume -q mail --max 1 --consumer-id berta")
    assert at("show -q mail m-3 --json").json["state"] == "ready"
    assert at("show -q mail m-3 --json").json["message"]["targetConsumerId"] == "anna"
    assert at("consume -q mail --max 1 --consumer-id berta --raw").out == ""
    assert at("consume -q mail --max 1 --consumer-id anna --raw").out.startswith('"1"')


@pytest.mark.parametrize(("options", "field"), [("--group ''", "groupId"), ("--target 'a b'", "targetConsumerId")])
def test_cli_publish_refuses_a_bad_group_or_target_by_field(at: Cli, options: str, field: str) -> None:
    failed = at(f"publish -q mail {options}", "1", code=2)
    assert field in failed.err


def test_cli_publish_raw_stores_any_bytes_unchanged(at: Cli, tmp_path: Path) -> None:
    photo = bytes(range(256)) * 3
    (tmp_path / "photo").write_bytes(photo)
    at("publish -q images --raw --file photo --id p --type image --content-type image/png --priority 1")
    shown = at("show -q images p --json").json
    assert (shown["message"]["contentType"], shown["message"]["type"], shown["priority"]) == ("image/png", "image", 1)
    assert len(shown["message"]["payloadBase64"]) == len(photo) * 4 // 3
    assert "768 bytes: 00 01 02" in at("peek -q images").out


def test_cli_publish_priority_orders_messages_and_delay_holds_them_back(at: Cli) -> None:
    at("publish -q mail", "1")
    at("publish -q mail --priority 5", "2")
    at("publish -q mail --priority 0", "3")
    at("publish -q mail --delay 1000", "4")
    assert at("consume -q mail --raw").out == "3\n2\n1\n"
    assert at("status -q mail --json").json["queues"][0]["delayed"] == 1


def test_dedup_of_cli_publish_stores_the_same_key_or_id_once(at: Cli) -> None:
    first = at("publish -q mail --json --dedup-key k", "1").json
    again = at("publish -q mail --json --dedup-key k", "2").json
    assert (again["duplicate"], again["messageId"]) == (True, first["messageId"])
    assert "known already" in at(f"publish -q mail --id {first['messageId']}", "3").out
    assert at("status --json").json["queues"][0]["ready"] == 1


def test_cli_publish_lines_stores_each_line_as_a_message_in_order(at: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("\n".join(f'{{"n": {n}}}' for n in range(2500)) + "\n\n")
    assert at("publish -q mail --lines --file m.jsonl").out == "published 2,500 to mail\n"
    answer = at(
        "publish -q mail --lines --file - --json --type t", stdin=b'1\r\n{"messageId":"u","type":"u","payload":2}'
    ).json
    assert answer == {"ok": True, "queue": "mail", "published": 2, "duplicates": 0, "refused": 0}
    taken = at("consume -q mail --json --batch 1000").lines
    assert [line["message"]["payload"] for line in taken[:2500]] == [{"n": n} for n in range(2500)]
    assert [(line["message"]["type"], line["message"]["payload"]) for line in taken[2500:]] == [("t", 1), ("t", 2)]


def test_cli_publish_raw_lines_stores_each_line_as_bytes(at: Cli) -> None:
    at("publish -q log --lines --raw --file -", stdin=b"one\n\xfftwo\n")
    assert at("status -q log --json").json["queues"][0]["ready"] == 2


def test_cli_publish_lines_of_a_file_with_a_malformed_line_stores_nothing(at: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("1\n" * 1500 + "{\n" + "1\n")
    refused = at("publish -q mail --lines --file m.jsonl", code=2)
    assert "bad_input: file: line 1501: document: malformed JSON" in refused.err
    assert "nothing was stored" in refused.err
    assert at("queues --json").json["queues"] == []


def test_cli_publish_lines_of_a_stream_with_a_malformed_line_reports_how_many_are_stored(at: Cli) -> None:
    refused = at("publish -q mail --lines --file - --json", stdin=b"1\n" * 1500 + b"\n{\n", code=2)
    assert "line 1502: document: malformed JSON" in refused.complaint["error"]
    assert "1000 before it are stored" in refused.complaint["error"]
    assert at("status --json").json["queues"][0]["ready"] == 1000


def test_cli_publish_lines_of_a_file_with_a_line_too_large_stores_nothing(at: Cli, tmp_path: Path) -> None:
    at("policy set -q mail", '{"maxBytes": 10}')
    (tmp_path / "m.jsonl").write_text('1\n"far too long"\n')
    refused = at("publish -q mail --lines --file m.jsonl --json", code=2)
    assert refused.complaint["code"] == "too_large"
    assert "line 2: payload: 14 bytes, this queue takes 10" in refused.complaint["error"]
    assert at("status -q mail --json").json["queues"][0]["ready"] == 0


def test_json_schema_refusal_of_cli_publish_has_its_own_exit_code(at: Cli) -> None:
    schema = '{"schemas": {"reading": {"*": {"type": "object", "required": ["temp"]}}}}'
    at("policy set -q mail", schema)
    refused = at("publish -q mail --type reading --json", "{}", code=7).json
    assert "temp" in refused["refused"]
    assert "dead letters of mail" in at("publish -q mail --type reading", "{}", code=7).out
    lines = at("publish -q mail --type reading --lines --file -", stdin=b'{}\n{"temp":1}', code=7)
    assert "published 1 to mail, 1 refused" in lines.out
    assert at("dlq stats -q mail-dlq --json").json["byReason"] == {"VALIDATION_ERROR": 3}


def test_cli_publish_to_a_dead_letter_queue_name_is_refused(at: Cli) -> None:
    at("publish -q mail", "1")
    refused = at("publish -q mail-dlq", "1", code=2)
    assert "queue: 'mail-dlq' shows the dead letters of 'mail'" in refused.err


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("publish -q mail", "payload"),
        ("publish -q mail 1 --file x", "payload"),
        ("publish -q mail 1 --payload 2", "payload"),
        ("publish -q mail 1 --payload --envelope", "--envelope"),
        ("publish -q mail 1 --raw --envelope", "--envelope"),
        ("publish -q mail 1 --envelope", "payload"),
        ("publish -q mail --envelope", "payload"),
        ("publish -q mail --file nowhere.json", "file"),
        ("publish -q mail --file .", "file"),
        ("publish -q mail 1 --lines", "--lines"),
        ("publish -q mail --file x --lines --id a", "--id"),
        ("publish -q mail --file x --lines --dedup-key a", "--dedup-key"),
        ("publish -q mail 1 --content-type text/plain", "--content-type"),
        ("publish -q mail 1 --attribute novalue", "--attribute"),
        ("publish -q mail 1 --priority -1", "attributes.priority"),
        ("publish -q mail 1 --delay -1", "delay"),
        ("publish -q mail 1 --ttl 0", "ttl"),
        ("publish -q mail 1 --id ../x", "messageId"),
        ("publish -q ../mail 1", "queue"),
        ("publish -q mail 1 --type-version -1", "version"),
    ],
)
def test_cli_publish_bad_input_names_its_field_and_stores_nothing(at: Cli, line: str, field: str) -> None:
    complaint = at(f"{line} --json", code=2).complaint
    assert (complaint["ok"], complaint["code"], complaint["field"]) == (False, "bad_input", field)
    assert at("queues --json").json["queues"] == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "",
        "nul",
        '{"messageId": "m", "payload": 1, "type": 7}',
        '{"messageId": "m", "queue": "other", "payload": 1}',
    ],
)
def test_cli_publish_of_a_bad_document_stores_nothing(at: Cli, text: str) -> None:
    assert at("publish -q mail --json", text, code=2).complaint["code"] == "bad_input"
    assert at("queues --json").json["queues"] == []
