"""Who may do what, and how often."""

import pytest

from yirangmq.core.access import ADMIN, ANYWHERE, CONSUME, GREET, LIST, LOOK, PUBLISH, AccessGrant
from yirangmq.core.errors import NotAllowed, QuotaExceeded
from yirangmq.protocols.http.auth import MAX_BUCKETS, HttpAccess, RequestRateLimiter
from yirangmq.protocols.http.types import Request

SHOP = AccessGrant("shop-token", frozenset({PUBLISH}), ("mail", "order-*"))
WORKER = AccessGrant("worker-token", frozenset({CONSUME}))
CHIEF = AccessGrant("chief-token")
LOCAL_CHIEF = AccessGrant("local-chief", frozenset({ADMIN}), ("test-*",))


def asked(authorization: str | None = None, peer: str = "10.0.0.1:5") -> Request:
    headers = {} if authorization is None else {"authorization": authorization}
    return Request("GET", "/", "", headers, b"", peer)


@pytest.mark.parametrize(
    ("token", "scope", "queue", "may"),
    [
        ("shop-token", PUBLISH, "mail", True),
        ("shop-token", PUBLISH, "order-7", True),
        ("shop-token", PUBLISH, "order", False),
        ("shop-token", PUBLISH, "mail2", False),
        ("shop-token", PUBLISH, "MAIL", False),
        ("shop-token", PUBLISH, "mail\n", False),
        ("shop-token", PUBLISH, None, False),
        ("shop-token", CONSUME, "mail", False),
        ("shop-token", ADMIN, "mail", False),
        ("shop-token", LIST, "mail", True),
        ("shop-token", LIST, "other", False),
        ("shop-token", LIST, ANYWHERE, True),
        ("shop-token", LIST, None, False),
        ("shop-token", LOOK, "mail", False),
        ("shop-token", LOOK, None, False),
        ("shop-token", GREET, None, True),
        ("worker-token", CONSUME, "anything", True),
        ("worker-token", CONSUME, None, True),
        ("worker-token", PUBLISH, "anything", False),
        ("chief-token", PUBLISH, "anything", True),
        ("chief-token", CONSUME, "anything", True),
        ("chief-token", ADMIN, "anything", True),
        ("chief-token", ADMIN, None, True),
        ("local-chief", ADMIN, "test-1", True),
        ("local-chief", ADMIN, "live-1", False),
        ("local-chief", ADMIN, None, False),
    ],
)
def test_token_allows_only_the_scopes_and_queues_of_its_rule(
    token: str, scope: str, queue: str | None, may: bool
) -> None:
    guard = HttpAccess([SHOP, WORKER, CHIEF, LOCAL_CHIEF])
    if may:
        guard.check(asked(f"Bearer {token}"), scope, queue)
        return
    with pytest.raises(NotAllowed) as caught:
        guard.check(asked(f"Bearer {token}"), scope, queue)
    assert caught.value.field == "token"


@pytest.mark.parametrize(
    "authorization",
    [
        None, "", "Bearer", "Bearer ", "Bearer shop-toke", "Bearer shop-token2", "Basic shop-token", "shop-token",
        "bearer-shop-token", "Bearer é",
    ],
)  # fmt: skip
def test_token_unknown_or_malformed_is_rejected_without_revealing_names(authorization: str | None) -> None:
    with pytest.raises(NotAllowed) as caught:
        HttpAccess([SHOP]).check(asked(authorization), LOOK, None)
    assert caught.value.field == "authorization"
    assert "shop" not in str(caught.value)


def test_token_scheme_bearer_is_read_in_any_case() -> None:
    HttpAccess([SHOP]).check(asked("bEARER  shop-token "), PUBLISH, "mail")


def test_token_absent_from_the_settings_allows_every_request() -> None:
    guard = HttpAccess()
    assert guard.is_open
    guard.check(asked(), ADMIN, None)
    guard.check(asked("Bearer whatever"), ADMIN, "mail")


def test_token_is_not_needed_on_a_unix_socket() -> None:
    HttpAccess([SHOP]).check(asked(peer="unix:17"), ADMIN, None)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rate_limit_allows_a_burst_and_then_the_rate_per_client() -> None:
    time = Time()
    guard = HttpAccess(rate=RequestRateLimiter(10, 3, time))
    for _ in range(3):
        guard.admit(asked())
    with pytest.raises(QuotaExceeded) as caught:
        guard.admit(asked())
    assert caught.value.retry_after == pytest.approx(0.1)
    guard.admit(asked(peer="10.0.0.2:5"))
    time.now = 0.1
    guard.admit(asked(peer="10.0.0.1:99"))  # the same client on another connection
    with pytest.raises(QuotaExceeded):
        guard.admit(asked())
    time.now = 100.0
    for _ in range(3):
        guard.admit(asked())
    with pytest.raises(QuotaExceeded):
        guard.admit(asked())


def test_rate_limit_counts_a_known_token_over_all_addresses_and_unknown_tokens_by_address() -> None:
    guard = HttpAccess([SHOP], RequestRateLimiter(1, 1, Time()))
    guard.admit(asked("Bearer shop-token"))
    with pytest.raises(QuotaExceeded):
        guard.admit(asked("Bearer shop-token", peer="10.9.9.9:1"))
    guard.admit(asked("Bearer guess-1"))
    with pytest.raises(QuotaExceeded):
        guard.admit(asked("Bearer guess-2"))


def test_rate_limit_bounds_the_number_of_counted_clients() -> None:
    rate = RequestRateLimiter(1, 1, Time())
    for number in range(MAX_BUCKETS + 100):
        rate.take(str(number))
    assert len(rate._buckets) == MAX_BUCKETS


def test_rate_limit_unset_admits_every_request() -> None:
    guard = HttpAccess([SHOP])
    for _ in range(10_000):
        guard.admit(asked())
