"""The name of a message's file: everything that changes in its life, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.errors import StoreError
from yirangmq.core.message import RANK_LAST, Envelope, Message, Reason
from yirangmq.core.policy import MAX_BODY
from yirangmq.core.states import State
from yirangmq.core.validation import line_of
from yirangmq.format.envelope import MAX_HEADER
from yirangmq.stores.files.message_file import fill_from_content, write_envelope
from yirangmq.stores.files.names import DEPTH, STATE_FOLDERS, FileRow, due_in, needs_content, read_name, state_folder_of

MOMENTS = st.sampled_from([0, 1, 999, 1_768_296_060_000, 9 * 10**12]) | st.integers(0, 9 * 10**12)
COUNTS = st.integers(0, 10**6)
NUMBERS = st.integers(1, 10**12 - 1)
IDS = st.from_regex(r"\A[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}\Z")
CONSUMERS = st.just("") | st.from_regex(r"\A[a-zA-Z0-9_-][a-zA-Z0-9._:@-]{0,63}\Z")
RANKS = st.just(RANK_LAST) | st.integers(0, RANK_LAST)
LINES = st.sampled_from([0, 1, 2**62 - 1]) | st.integers(0, 2**62 - 1)
SIZES = st.sampled_from([0, 35, 36]) | st.integers(0, MAX_BODY + MAX_HEADER)
REASONS = st.just("") | st.sampled_from([reason.value for reason in Reason])


@st.composite
def cards(draw: st.DrawFn) -> FileRow:
    state, body = draw(st.sampled_from(list(STATE_FOLDERS.values())))
    message = Message(
        draw(NUMBERS),
        "mail",
        draw(IDS),
        state,
        draw(RANKS),
        draw(NUMBERS),
        draw(COUNTS),
        draw(COUNTS),
        draw(MOMENTS),
        draw(MOMENTS),
        draw(MOMENTS),
        draw(CONSUMERS),
        draw(REASONS),
        draw(COUNTS),
        body,
        draw(LINES),
        draw(LINES),
        draw(SIZES),
    )
    return FileRow(message, draw(st.sampled_from(["", "a", "b"])), draw(st.booleans()))


@given(cards())
def test_file_name_round_trips_every_field_that_fits(card: FileRow) -> None:
    top = state_folder_of(card.message)
    found = read_name("mail", top, card.name)
    if card.name.partition("~")[0].endswith("E"):
        _check_short(card, found)
    else:
        assert found == card
    assert card.folder.startswith(f"{top}/")
    assert card.folder.count("/") == top.count("/") + DEPTH[top]
    assert due_in(card.name) == card.message.due_at
    assert len(card.name) <= 255
    assert "/" not in card.name


def _check_short(card: FileRow, found: FileRow | None) -> None:
    """What it has no room for stands in the content; of an id that is only remembered it is lost."""
    assert found is not None
    message = card.message
    if message.body:
        assert needs_content(found)
        filled = found.message._replace(group=message.group, target=message.target, size=message.size)
        assert filled._replace(rank=message.rank) == message
    else:
        assert found.message == message._replace(rank=RANK_LAST, group=0, target=0, size=0)


LARGEST = Message(
    10**12 - 1,
    "q" * 200,
    "i" * 100,
    State.DEAD,
    RANK_LAST - 1,
    10**12 - 2,
    1_000_001,
    36**5 - 1,
    9 * 10**13,
    9 * 10**13 + 1,
    9 * 10**13 + 2,
    "c" * 64,
    Reason.VALIDATION_ERROR.value,
    1_000_001,
    True,
    2**62 - 1,
    2**62 - 1,
    MAX_BODY + MAX_HEADER,
)


@pytest.mark.parametrize(("state", "body"), STATE_FOLDERS.values(), ids=list(STATE_FOLDERS))
def test_file_name_of_maximum_length_fits_the_file_system_limit(state: State, body: bool) -> None:
    for target in (0, LARGEST.target):
        card = FileRow(LARGEST._replace(state=state, body=body, target=target), "b", True)
        assert len(card.name) <= 244
        assert read_name("q" * 200, state_folder_of(card.message), card.name) is not None


def test_file_name_holds_the_largest_marks_beside_ids_of_usual_length() -> None:
    card = FileRow(LARGEST._replace(id="0" * 36, consumer="c" * 64), "b", True)
    assert 200 < len(card.name) <= 255
    assert read_name("q" * 200, "dlq", card.name) == card


def test_file_name_fields_without_room_are_read_from_the_content() -> None:
    sent = Envelope("mail", "i" * 100, 7, 1, 1, 0, None, '{"type":"t"}', b"payload", False, 2**61, 2**60)
    message = LARGEST._replace(queue="mail", rank=7, group=2**61, target=2**60, size=sent.size)
    card = FileRow(message, "b", True)
    found = read_name("mail", "dlq", card.name)
    assert found is not None
    assert needs_content(found)
    assert fill_from_content(found, write_envelope(sent)) == card
    dropped = b'{"messageId":"%s","attributes":{"priority":7},"payload":[1,2]}' % (b"i" * 100)
    from_outside = fill_from_content(found, dropped)
    assert from_outside is not None
    assert (from_outside.message.rank, from_outside.message.group, from_outside.message.target) == (7, 0, 0)
    assert fill_from_content(found, b"{") is None


def test_file_name_of_format_1_takes_the_size_from_the_content() -> None:
    old = "000000000042Cmkcdtg80~m-1.json"
    found = read_name("mail", "inbox", old)
    assert found is not None
    assert needs_content(found)
    sent = Envelope("mail", "m-1", RANK_LAST, 1, 1, 0, None, "", b"payload", False)
    whole = fill_from_content(found, write_envelope(sent))
    assert whole is not None
    assert (whole.message.size, whole.name) == (7, old), "it keeps its name until it moves"
    broken = fill_from_content(found, b"{")
    assert broken is not None
    assert broken.message.size == 0
    for top in ("meta/done", "meta/dropped"):
        remembered = read_name("mail", top, old)
        assert remembered is not None
        assert not needs_content(remembered)


def test_file_name_format_matches_the_documented_examples() -> None:
    """The format is public: docs/files.md shows these."""
    now = 1_768_296_060_000
    fresh = Message(42, "mail", "m-1", State.READY, RANK_LAST, 42, 0, 0, 0, 0, now, "", "", 0, True, 0, 0, 14)
    leased = fresh._replace(state=State.LEASED, attempt=1, leases=1, due_at=now + 30_000, consumer="worker-1")
    urgent = fresh._replace(rank=5, place=1042, attempt=2, leases=3, expires_at=now + 1, due_at=now + 1, repeats=2)
    dead = leased._replace(state=State.DEAD, reason="TIMEOUT", rank=5, place=1042)
    done = leased._replace(state=State.DONE, due_at=0)
    held = fresh._replace(state=State.HELD, group=line_of("order-7"))
    addressed = fresh._replace(target=line_of("worker-1"))
    assert [_shown(FileRow(message)) for message in (fresh, leased, urgent, held, addressed)] == [
        "inbox/last/0000000000/000000000042Cmkcdtg80Ze~m-1.json",
        "processing/0000000000/000000000042A1L1Dmkcdu3dcCmkcdtg80Ze~m-1~worker-1.json",
        "inbox/5/0000000001/000000001042P5S16A2L3Xmkcdtg81Cmkcdtg80N2Ze~m-1.json",
        "held/0000000000/000000000042Cmkcdtg80Gmtzyd6fqd5h1Ze~m-1.json",
        "inbox-for/d6lvwka9qpj1/last/0000000000/000000000042Cmkcdtg80Td6lvwka9qpj1Ze~m-1.json",
    ]
    assert [_shown(FileRow(dead, "a")), _shown(FileRow(done, "", True))] == [
        "dlq/2026-01-13T09/1768296060000P5S16WsyA1L1Dmkcdu3dcRtFaZe~m-1~worker-1.json",
        "archive/2026-01-13/0921/1768296060000S16A1L1FkZe~m-1~worker-1.json",
    ]
    assert _shown(FileRow(done._replace(body=False))).startswith("meta/done/0000000000/000000000042")
    assert _shown(FileRow(done._replace(state=State.DROPPED, body=False))).startswith("meta/dropped/0000000000/")


def _shown(card: FileRow) -> str:
    return f"{card.folder}/{card.name}"


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "order.json",
        "000000000042~m.json",
        "42Cmkcduabc~m.json",
        "000000000042Cmkcduabc~.hidden.json",
        "000000000042Cmkcduabc~a~b~c.json",
        "000000000042CMKC~m.json",
        "000000000042Z1Cmkcduabc~m.json",
        "000000000042Cmkcduabc~m.json.tmp",
        "000000000042Cmkcduabc~m\n.json",
        "000000000042W2Cmkcduabc~m.json",
        "000000000042CmkcduabcZ~m.json",
        "000000000042CmkcduabcTabGcd~m.json",
        "000000000042CmkcduabcGabE~m.json",
        "000000000042P5CmkcduabcE~m.json",
    ],
)
def test_file_name_of_foreign_form_is_rejected(name: str) -> None:
    assert read_name("mail", "inbox", name) is None


def test_file_name_with_the_sequence_given_twice_is_rejected() -> None:
    assert read_name("mail", "processing", "000000000042S2Cmkcduabc~m.json") is None


def test_file_name_of_a_reason_without_a_letter_is_refused() -> None:
    message = Message(1, "mail", "m", State.DEAD, RANK_LAST, 1, 0, 0, 0, 0, 0, "", "MOOD", 0, True)
    with pytest.raises(StoreError, match="MOOD"):
        _ = FileRow(message).name


def test_file_name_has_a_letter_for_every_reason() -> None:
    for reason in Reason:
        message = Message(1, "mail", "m", State.DEAD, RANK_LAST, 1, 0, 0, 0, 0, 0, "", reason, 0, True)
        card = read_name("mail", "dlq", FileRow(message).name)
        assert card is not None
        assert card.message.reason == reason
