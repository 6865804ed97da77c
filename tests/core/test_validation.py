"""Names, numbers and reasons: what is allowed, what is refused and by which name."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, QueueError, every_error
from yirangmq.core.message import MEANING, RANK_LAST, Message, Reason, check_reason, lease_id, split_lease_id
from yirangmq.core.states import State

GOOD = ["a", "A9", "_x", "-x", "a.b-c_d", "telemetry-dlq", "9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"]
BAD = ["", ".", "..", ".a", "a/b", "a\\b", "a b", "a\n", "\na", "é", "이랑", "a\x00", "a:b/", "*", None, 7, b"a", ["a"]]


@pytest.mark.parametrize("name", GOOD)
def test_name_validation_accepts_plain_names_of_queues_ids_and_consumers(name: str) -> None:
    assert validation.check_queue(name) == validation.check_id(name) == validation.check_consumer(name) == name


@pytest.mark.parametrize("name", BAD, ids=repr)
@pytest.mark.parametrize(
    ("check", "field"),
    [(validation.check_queue, "queue"), (validation.check_id, "messageId"), (validation.check_consumer, "consumerId")],
)
def test_name_validation_refuses_other_names_with_their_field(
    check: Callable[[object], str], field: str, name: object
) -> None:
    with pytest.raises(BadInput) as caught:
        check(name)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("check", "most"), [(validation.check_queue, 200), (validation.check_id, 100), (validation.check_consumer, 64)]
)
def test_name_validation_limits_the_length(check: Callable[[object], str], most: int) -> None:
    assert check("a" * most) == "a" * most
    with pytest.raises(BadInput):
        check("a" * (most + 1))


def test_name_validation_of_a_consumer_accepts_host_and_port() -> None:
    assert validation.check_consumer("host-1:8080@rack") == "host-1:8080@rack"


@given(st.text())
def test_name_validation_accepts_no_name_that_leaves_its_folder(name: str) -> None:
    try:
        validation.check_queue(name)
    except BadInput:
        return
    assert "/" not in name
    assert not name.startswith(".")
    assert name.isascii()
    assert name.isprintable()


@pytest.mark.parametrize(("given", "found"), [(None, None), (0, 0), (2**53 - 1, 2**53 - 1)])
def test_priority_is_null_or_counts_from_zero(given: object, found: int | None) -> None:
    assert validation.check_priority(given) == found


@pytest.mark.parametrize("given", [-1, 2**53, 1.0, "1", True, [], float("nan")], ids=repr)
def test_priority_of_another_form_is_refused(given: object) -> None:
    with pytest.raises(BadInput, match=r"^priority: "):
        validation.check_priority(given)


def test_priority_of_any_number_ranks_before_none() -> None:
    assert RANK_LAST > 2**53 - 1


@pytest.mark.parametrize(
    ("seconds", "found"), [(0, 0), (1, 1_000), (0.25, 250), (0.0004, 0), (validation.MAX_SECONDS, 316_224_000_000)]
)
def test_duration_in_seconds_becomes_milliseconds(seconds: float, found: int) -> None:
    assert validation.check_milliseconds(seconds, "delay") == found


@pytest.mark.parametrize(
    "seconds", [-0.001, "1", None, True, float("nan"), float("inf"), validation.MAX_SECONDS + 1], ids=repr
)
def test_duration_that_is_invalid_is_refused(seconds: object) -> None:
    with pytest.raises(BadInput, match=r"^delay: "):
        validation.check_milliseconds(seconds, "delay")


@pytest.mark.parametrize("count", [0, -1, 11, 1.0, "1", None, True], ids=repr)
def test_count_that_is_invalid_or_above_its_maximum_is_refused(count: object) -> None:
    assert validation.check_count(10, "limit", most=10) == 10
    with pytest.raises(BadInput, match=r"^limit: "):
        validation.check_count(count, "limit", most=10)


# -- reasons and errors -----------------------------------------------------------------------------------------------


def test_reason_codes_are_a_closed_list() -> None:
    codes = {"VALIDATION_ERROR", "HANDLER_ERROR", "TIMEOUT", "RETRY_LIMIT", "POISON", "REJECTED", "EXPIRED", "CORRUPT"}
    assert {reason.value for reason in Reason} == codes == set(MEANING)
    assert [check_reason(code) for code in sorted(codes)] == [Reason(code) for code in sorted(codes)]


@pytest.mark.parametrize("code", ["", "timeout", "OTHER", None, 7, "TIMEOUT "], ids=repr)
def test_reason_code_that_is_unknown_is_refused(code: object) -> None:
    with pytest.raises(BadInput, match=r"^reasonCode: .*TIMEOUT"):
        check_reason(code)


def test_error_code_is_unique_for_every_error_class() -> None:
    codes = [kind.code for kind in every_error()]
    assert len(codes) == len(set(codes)) == len(every_error())
    assert all(issubclass(kind, QueueError) for kind in every_error())
    assert {"bad_input", "not_found", "wrong_state", "lease_expired", "lease_mismatch", "store_full"} <= set(codes)


# -- lease ids --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**62), st.integers(0, 2**40))
def test_lease_id_names_message_and_lease(seq: int, leases: int) -> None:
    card = Message(seq, "q", "m", State.LEASED, 0, 0, 1, leases, 0, 0, 0, "", "", 0, True)
    assert split_lease_id(lease_id(card)) == (seq, leases)


@pytest.mark.parametrize(
    "text", ["", "-", "1", "1-", "-1", "1-2-3", "a-1", "1-b", "1 -2", "1--2", "+1-2", "0x1-2", "1-" + "9" * 40]
)
def test_lease_id_of_another_form_is_not_accepted(text: str) -> None:
    assert split_lease_id(text) is None
