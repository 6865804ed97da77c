"""Content as HTTP has it: a type and bytes, into an envelope and out of it."""

import pytest

from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.format.envelope import as_json, check_type, header_of, type_of, with_content

EMPTY = Envelope("mail", "m", RANK_LAST, 1, 1, 0, None, "", b"", False)


@pytest.mark.parametrize(
    ("said", "body", "is_json", "told"),
    [
        ("", b"x", False, "application/octet-stream"),
        ("", b"{}", False, "application/octet-stream"),
        ("text/plain", b"x", False, "text/plain"),
        ("not a type at all \xe9", b"x", False, "not a type at all \xe9"),
        ("application/json", b'{"a":1}', True, "application/json"),
        ("application/json", b'{"a":1} ', False, "application/json"),
        ("application/json", b"{", False, "application/json"),
        ("application/json", b"1,2", False, "application/json"),
        ("application/json", b'1},{"b":2', False, "application/json"),
        ("application/json", b"", False, "application/json"),
        ("application/json", b"\xff", False, "application/json"),
        ("application/json", b"1e999", True, "application/json"),
        ("APPLICATION/JSON; charset=utf-8", b"[]", True, "APPLICATION/JSON; charset=utf-8"),
        ("application/problem+json", b"[]", True, "application/problem+json"),
    ],
)
def test_content_type_and_bytes_are_kept_in_the_envelope(said: str, body: bytes, is_json: bool, told: str) -> None:
    envelope = with_content(EMPTY, said, body)
    assert (envelope.payload, envelope.is_json, type_of(envelope)) == (body, is_json, told)


def test_content_type_json_puts_the_value_into_the_envelope_as_json() -> None:
    assert as_json(with_content(EMPTY, "application/json", b'{"a":1}')).endswith(b'"payload":{"a":1}}')


def test_content_type_change_keeps_the_other_members_of_the_envelope() -> None:
    before = EMPTY._replace(header='{"traceId":"t","contentType":"text/plain","attributes":{"priority":3}}', rank=3)
    after = with_content(before, "text/html", b"x")
    assert header_of(after) | {"timestamp": 0} == {
        "messageId": "m",
        "timestamp": 0,
        "queue": "mail",
        "traceId": "t",
        "attributes": {"priority": 3},
        "contentType": "text/html",
    }
    assert "contentType" not in with_content(after, "", b"").header


def test_content_type_longer_than_255_characters_is_refused() -> None:
    assert check_type("x" * 255) == "x" * 255
    with pytest.raises(BadInput, match="content-type"):
        check_type("x" * 256)
