"""Checks of a processor: by table, what each lets through and what it says of the rest; no check changes a byte."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.payload_check_parser import READERS, read_check
from yirangmq.core.payload_checks import CheckedMessage, CheckProblem, Schema, first_problem
from yirangmq.core.processor import Chain, Hook, check_hooks, may_run, read_chain, read_chains, show_chain


def decode(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError as error:
        raise BadInput(str(error)) from None


def fits(check: Schema, value: Any) -> str:
    """As a schema library would say it, for schemas of one keyword."""
    wanted = check.schema.get("required", []) if isinstance(value, dict) else []
    return next((f"payload: {name!r} is a required property" for name in wanted if name not in value), "")


def complaint(document: dict[str, Any], payload: bytes, header: Mapping[str, Any] | None = None) -> CheckProblem | None:
    subject = CheckedMessage(payload, False, lambda: header or {}, decode, fits)
    found = first_problem((read_check(document, "checks[0]"),), subject)
    return None if found is None else found[1]


HANGUL = "이체 요청".encode("euc-kr")
RECORD = b"0101234567890  "

FINE: list[tuple[dict[str, Any], bytes, dict[str, Any]]] = [
    ({"check": "length", "exact": 3}, b"\xff\x00\xfe", {}),
    ({"check": "length", "min": 3, "max": 3}, b"abc", {}),
    ({"check": "length"}, b"", {}),
    ({"check": "headers", "fields": {"type": {}}}, b"", {"type": "x"}),
    ({"check": "headers", "fields": {"attributes.bank": {"is": "digits", "min": 3, "max": 3}}}, b"",
     {"attributes": {"bank": "012"}}),
    ({"check": "headers", "fields": {"attributes.a.b": {}}}, b"", {"attributes": {"a.b": 1}}),
    ({"check": "headers", "fields": {"attributes.to": {"required": False}}}, b"", {}),
    ({"check": "headers", "fields": {"version": {"oneOf": [1, 2]}}}, b"", {"version": 2}),
    ({"check": "statedLength", "header": "attributes.size"}, b"12345", {"attributes": {"size": "5"}}),
    ({"check": "statedLength", "header": "attributes.size"}, b"12345", {"attributes": {"size": 5}}),
    ({"check": "statedLength", "header": "attributes.size", "tolerancePercent": 5}, b"x" * 105,
     {"attributes": {"size": 100}}),
    ({"check": "statedLength"}, b"0007abc", {}),
    ({"check": "statedLength", "counts": "rest"}, b"0003abc", {}),
    ({"check": "statedLength", "size": 2, "as": "big", "counts": "rest"}, b"\x00\x03abc", {}),
    ({"check": "statedLength", "size": 2, "as": "little", "counts": "rest"}, b"\x03\x00abc", {}),
    ({"check": "statedLength", "size": 2, "as": "bcd"}, b"\x00\x13" + b"x" * 11, {}),
    ({"check": "statedLength", "at": 2, "size": 2}, b"AB06xx", {}),
    ({"check": "json"}, b' {"a": 1} ', {}),
    ({"check": "json", "root": "object"}, b"\n{}", {}),
    ({"check": "json", "root": "number"}, b"-1", {}),
    ({"check": "schema", "schema": {"required": ["a"]}}, b'{"a": 1}', {}),
    ({"check": "encoding", "encoding": "utf-8"}, "이체".encode(), {}),
    ({"check": "encoding", "encoding": "euc-kr"}, HANGUL, {}),
    ({"check": "encoding", "encoding": "big5"}, "轉帳".encode("big5"), {}),
    ({"check": "encoding", "encoding": "gb18030"}, "转账𠮷".encode("gb18030"), {}),
    ({"check": "encoding", "encoding": "cp500"}, bytes(range(256)), {}),
    ({"check": "records", "length": 15}, RECORD * 3, {}),
    ({"check": "records", "length": 15, "ending": "\r\n"}, b"\r\n".join([RECORD] * 3), {}),
    ({"check": "records", "length": 15, "ending": "\n"}, (RECORD + b"\n") * 2, {}),
    ({"check": "records", "length": 15, "fields": [
        {"name": "kind", "at": 0, "size": 3, "oneOf": ["010", "020"]},
        {"name": "amount", "at": 3, "size": 10, "is": "digits"},
        {"name": "filler", "at": 13, "size": 2, "is": "blank"}]}, RECORD, {}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FINE)), ids=lambda number: f"{number}-{FINE[number][0]['check']}")
def test_payload_check_accepts_a_message_that_fits(number: int) -> None:
    document, payload, header = FINE[number]
    assert complaint(document, payload, header) is None


WRONG: list[tuple[dict[str, Any], bytes, dict[str, Any], str, str]] = [
    ({"check": "length", "exact": 3}, b"ab", {}, "payload", "has 2 bytes, not exactly 3"),
    ({"check": "length", "min": 3}, b"ab", {}, "payload", "at least 3"),
    ({"check": "length", "max": 1}, b"ab", {}, "payload", "at most 1"),
    ({"check": "headers", "fields": {"attributes.bank": {}}}, b"", {}, "attributes.bank", "is missing"),
    ({"check": "headers", "fields": {"attributes.bank": {}}}, b"", {"attributes": 7}, "attributes.bank", "is missing"),
    ({"check": "headers", "fields": {"type": {"oneOf": ["a", "b"]}}}, b"", {"type": "c"}, "type", "one of a, b"),
    ({"check": "headers", "fields": {"type": {"max": 1}}}, b"", {"type": "cc"}, "type", "has 2 characters"),
    ({"check": "headers", "fields": {"type": {"is": "hex"}}}, b"", {"type": "xyz"}, "type", "must be hex"),
    ({"check": "headers", "fields": {"type": {"is": "digits"}}}, b"", {"type": "１２"}, "type", "must be digits"),
    ({"check": "statedLength", "header": "attributes.n"}, b"ab", {}, "attributes.n", "is missing"),
    ({"check": "statedLength", "header": "version"}, b"ab", {"version": True}, "version", "states no length"),
    ({"check": "statedLength", "header": "version"}, b"ab", {"version": 3}, "version", "states 3 bytes, has 2"),
    ({"check": "statedLength", "header": "version", "tolerancePercent": 5}, b"x" * 106, {"version": 100}, "version",
     "more than 5 % away"),
    ({"check": "statedLength"}, b"000", {}, "payload[0:4]", "states no length"),
    ({"check": "statedLength"}, b"00x4", {}, "payload[0:4]", "states no length"),
    ({"check": "statedLength", "size": 1, "as": "bcd"}, b"\xfa", {}, "payload[0:1]", "states no length"),
    ({"check": "statedLength", "size": 2, "as": "big"}, b"\x00\x03", {}, "payload[0:2]", "states 3 bytes, has 2"),
    ({"check": "json"}, b"{", {}, "payload", "is not JSON"),
    ({"check": "json"}, b"\xff", {}, "payload", "is not JSON"),
    ({"check": "json", "root": "array"}, b"{}", {}, "payload", "must be an array"),
    ({"check": "schema", "schema": {"required": ["a"]}}, b"{}", {}, "payload", "'a' is a required property"),
    ({"check": "schema", "schema": {}}, b"<a/>", {}, "payload", "is not JSON"),
    ({"check": "encoding", "encoding": "utf-8"}, b"abc\xff", {}, "payload", "byte 3 (ff)"),
    ({"check": "encoding", "encoding": "euc-kr"}, HANGUL + b"\x80", {}, "payload", "is not euc-kr: byte 9"),
    ({"check": "encoding", "encoding": "big5"}, b"\xff\xff", {}, "payload", "is not big5"),
    ({"check": "encoding", "encoding": "gb18030"}, b"\x81", {}, "payload", "is not gb18030"),
    ({"check": "encoding", "encoding": "ascii"}, b"\x80", {}, "payload", "is not ascii"),
    ({"check": "records", "length": 15}, b"", {}, "payload", "has 0 records"),
    ({"check": "records", "length": 15}, RECORD + b"x", {}, "payload", "16 bytes, which is no number of records of 15"),
    ({"check": "records", "length": 15, "max": 1}, RECORD * 2, {}, "payload", "has 2 records"),
    ({"check": "records", "length": 15, "ending": "\n"}, RECORD + b"x" + RECORD, {}, "payload[0]", "end of record: 78"),
    ({"check": "records", "length": 15, "fields": [{"name": "amount", "at": 3, "size": 12, "is": "digits"}]},
     b"0" * 15 + RECORD, {}, "payload[1].amount", "must be digits"),
    ({"check": "records", "length": 2, "fields": [{"name": "kind", "size": 2, "oneOf": ["A"]}]}, b"A B ", {},
     "payload[1].kind", "must be one of A"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)), ids=lambda number: f"{number}-{WRONG[number][0]['check']}")
def test_payload_check_refuses_a_message_that_does_not_fit_with_its_field(number: int) -> None:
    document, payload, header, field, text = WRONG[number]
    found = complaint(document, payload, header)
    assert found is not None
    assert found.field == field
    assert text in found.text


def test_payload_check_tables_cover_every_check() -> None:
    assert {document["check"] for document, *_ in FINE} == {document["check"] for document, *_ in WRONG} == {*READERS}


@pytest.mark.parametrize("number", range(len(FINE)), ids=lambda number: f"{number}-{FINE[number][0]['check']}")
def test_payload_check_shown_is_read_back_unchanged(number: int) -> None:
    check = read_check(FINE[number][0], "c")
    assert read_check(check.show(), "c") == check


BAD: list[tuple[object, str, str]] = [
    ([], "processor", "must be a JSON object"),
    ({"integrety": "sha256"}, "processor.integrety", "did you mean 'integrity'?"),
    ({"integrity": "md5"}, "processor.integrity", "must be one of none, sha256"),
    ({"checks": {}}, "processor.checks", "must be an array"),
    ({"checks": [{}]}, "processor.checks[0].check", "is needed"),
    ({"checks": [{"check": "size"}]}, "processor.checks[0].check", "must be one of length"),
    ({"checks": [{"check": "length", "min": 2, "max": 1}]}, "processor.checks[0].min", "not be larger than max"),
    ({"checks": [{"check": "length", "mx": 1}]}, "processor.checks[0].mx", "not a known field"),
    ({"checks": [{"check": "headers"}]}, "processor.checks[0].fields", "must be an object"),
    ({"checks": [{"check": "headers", "fields": {"type": {"is": "x"}}}]}, "processor.checks[0].fields.type.is", "any"),
    ({"checks": [{"check": "encoding", "encoding": "klingon"}]}, "processor.checks[0].encoding", "a known encoding"),
    ({"checks": [{"check": "encoding", "encoding": "hex"}]}, "processor.checks[0].encoding", "not an encoding of text"),
    ({"checks": [{"check": "encoding", "encoding": "punycode"}]}, "processor.checks[0].encoding", "encoding of text"),
    ({"checks": [{"check": "encoding"}]}, "processor.checks[0].encoding", "must be a text"),
    ({"checks": [{"check": "schema", "schema": 7}]}, "processor.checks[0].schema", "must be a JSON Schema"),
    ({"checks": [{"check": "records"}]}, "processor.checks[0].length", "whole number from 1"),
    ({"checks": [{"check": "records", "length": 4, "fields": [{"name": "a", "at": 3, "size": 2}]}]},
     "processor.checks[0].fields[0].size", "ends behind its record"),
    ({"checks": [{"check": "records", "length": 4, "ending": "이"}]}, "processor.checks[0].ending", "each one byte"),
    ({"hooks": [{"hook": "os.system"}]}, "processor.hooks[0].hook", "must be package.module:function"),
    ({"hooks": [{"hook": "a:b", "produces": "mail"}]}, "processor.hooks[0].produces", "another queue"),
    ({"hooks": [{"hook": "a:b", "produces": "no/such"}]}, "processor.hooks[0].produces", ""),
    ({"hooks": [{"hook": "a:b", "original": "record"}]}, "processor.hooks[0]", "needs produces"),
    ({"hooks": [{"hook": "a:b", "timeoutSec": 0}]}, "processor.hooks[0].timeoutSec", "must be a number"),
    ({"workers": 0}, "processor.workers", "must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "field", "text"), BAD, ids=[f"{n}-{one[1]}" for n, one in enumerate(BAD)])
def test_processor_document_that_is_invalid_is_refused_with_its_field(document: object, field: str, text: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        read_chain(document, "mail")
    assert caught.value.field == field
    assert text in str(caught.value)


def test_processor_shown_is_read_back_unchanged() -> None:
    given = {
        "integrity": "sha256",
        "checks": [document for document, _, _ in FINE],
        "hooks": [{"hook": "a.b:c", "produces": "out", "original": "record", "timeoutSec": 0.5}, {"hook": "a:d"}],
        "workers": 3,
    }
    chain = read_chain(given, "mail")
    assert chain is not None
    assert chain.hooks == (Hook("a.b:c", "out", "record", 500), Hook("a:d"))
    assert read_chain(show_chain(chain), "mail") == chain


def test_processor_null_differs_from_an_empty_processor() -> None:
    assert read_chain(None, "mail") is None
    assert read_chain({}, "mail") == Chain()


@pytest.mark.parametrize(
    ("name", "allowed", "may"),
    [("bank.rules:check", ("bank",), True), ("bank.rules:check", ("bank.rules",), True),
     ("bank:check", ("bank",), True), ("banks:check", ("bank",), False),
     ("os:system", (), False), ("bank:check", ("bank.rules",), False)],
)  # fmt: skip
def test_hook_outside_of_the_allowed_modules_is_refused(name: str, allowed: tuple[str, ...], may: bool) -> None:
    assert may_run(Hook(name), allowed) is may
    if not may:
        with pytest.raises(BadPolicy, match=r"hooks\[0\].hook: .* may not run here"):
            check_hooks(Chain(hooks=(Hook(name),)), allowed)


def test_processor_documents_of_a_server_are_read_by_queue() -> None:
    chains = read_chains({"*": {"integrity": "sha256"}, "mail": {}, "none": None}, "")
    assert chains == {"*": Chain(integrity=True), "mail": Chain()}
    with pytest.raises(BadPolicy, match=r"mail\.integrity"):
        read_chains({"mail": {"integrity": 1}}, "")


DOCUMENTS = st.sampled_from([*(one[0] for one in FINE), *(one[0] for one in WRONG)])
HEADERS = st.dictionaries(
    st.sampled_from(["type", "version", "attributes"]),
    st.one_of(
        st.text(), st.integers(), st.dictionaries(st.sampled_from(["bank", "size", "n"]), st.text() | st.integers())
    ),
)


@given(DOCUMENTS, st.binary(max_size=200) | st.text().map(str.encode), HEADERS)
def test_payload_check_gives_a_result_for_any_bytes_and_leaves_them_unchanged(
    document: dict[str, Any], payload: bytes, header: dict[str, Any]
) -> None:
    before = bytes(payload)
    found = complaint(document, payload, header)
    assert found is None or (found.field and found.text)
    assert payload == before


@given(st.binary(max_size=60), st.sampled_from(["utf-8", "euc-kr", "big5", "gb18030", "shift_jis", "cp949"]))
def test_payload_check_encoding_accepts_exactly_the_bytes_that_can_be_decoded(payload: bytes, encoding: str) -> None:
    try:
        payload.decode(encoding)
        can_be_read = True
    except UnicodeDecodeError:
        can_be_read = False
    assert (complaint({"check": "encoding", "encoding": encoding}, payload) is None) is can_be_read


@given(st.integers(1, 20), st.sampled_from(["", "\n", "\r\n"]), st.integers(1, 6), st.binary(max_size=3))
def test_payload_check_records_counts_records_of_any_length(length: int, ending: str, count: int, more: bytes) -> None:
    payload = (b"x" * length + ending.encode()) * count + more
    left = len(more) % (length + len(ending)) if not ending else len(more)
    found = complaint({"check": "records", "length": length, "ending": ending}, payload)
    if not left:
        assert found is None
    elif not ending:
        assert found is not None
