"""Routes of the administrator: who has the password sees and sets what governs a queue.

A setting is a member of the queue's policy (docs/policy.md) under another name; null is as the server says."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any

from yirangmq.broker.policies import readable
from yirangmq.core.errors import BadInput
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Transaction
from yirangmq.doors.http.exchange import Request, Response
from yirangmq.doors.http.mq import coercion
from yirangmq.doors.http.mq.accept import ARRAY
from yirangmq.doors.http.mq.answers import COMMON, JSON
from yirangmq.doors.http.mq.call import READ, Call
from yirangmq.doors.http.mq.lists import Listing, queues_page
from yirangmq.doors.http.mq.spaces import is_hashed
from yirangmq.format.json_codec import dumps

Read = Callable[[object, str], Any]
SETTINGS: Mapping[str, tuple[str, Read]] = {
    "unique": ("unique", coercion.a_flag),
    "drafting-timeout": ("draftSec", coercion.seconds),
    "ordered-timeout": ("claimSec", coercion.seconds),
    "active-timeout": ("activeSec", coercion.seconds),
    "concurrency": ("concurrency", coercion.whole),
}
"""By its name in the path: the member of the policy, and how it is read."""


class Admin:
    def __init__(self, password: str, tried: Callable[[Request, bool], None]) -> None:
        """``tried`` is told of every password shown."""
        self._password = password.encode()
        self._tried = tried

    def guarded(self, route: Callable[[Call], None]) -> Callable[[Call], None]:
        def entry(call: Call) -> None:
            refusal = self._refusal(call)
            if refusal is None:
                route(call)
            else:
                body = dumps({"error": f"{refusal} authorization header"})
                call.answer(Response(401, body, (*COMMON, ("www-authenticate", "Bearer"), JSON)))

        return entry

    def _refusal(self, call: Call) -> str | None:
        said = call.request.headers.get("authorization")
        if said is None:
            return "missing"
        scheme, _, shown = said.partition(" ")
        is_it = compare_digest(shown.strip().encode("latin-1"), self._password)  # as it came over the wire
        is_right = bool(is_it and self._password and scheme.lower() == "bearer")
        self._tried(call.request, is_right)
        return None if is_right else "invalid"

    # -- routes ---------------------------------------------------------------------------------------------------

    def configured(self, call: Call) -> None:
        """Queues of which at least one setting is the queue's own."""
        listing = Listing(call.house, ARRAY, queues_page(_is_configured))
        call.answer(call.stream(ARRAY, listing))

    def config(self, call: Call) -> None:
        call.submit(lambda transaction: transaction.policy(call.queue), lambda policy: call.json(_config(policy)))

    def put(self, setting: str) -> Callable[[Call], None]:
        member, read = SETTINGS[setting]

        def route(call: Call) -> None:
            given = call.document(*READ)
            if given is None:
                raise BadInput("must not be null", field=setting)
            self._configure(call, member, read(given, setting))

        return route

    def delete(self, setting: str) -> Callable[[Call], None]:
        member, _ = SETTINGS[setting]

        def route(call: Call) -> None:
            call.no_document()
            self._configure(call, member, None)

        return route

    def _configure(self, call: Call, member: str, value: object) -> None:
        namespace = call.namespace if is_hashed(call.queue) else ""
        call.method("queue_configure", {"queue": call.queue, "namespace": namespace, "member": member, "value": value})


def _is_configured(transaction: Transaction, queue: str) -> bool:
    policy = readable(transaction, queue)
    return policy is not None and any(value is not None for value in _config(policy).values())


def _config(policy: QueuePolicy) -> dict[str, object]:
    return {
        "unique": policy.unique,
        "draftingTimeout": _seconds(policy.draft_ms),
        "orderedTimeout": _seconds(policy.claim_ms),
        "activeTimeout": _seconds(policy.active_ms),
        "concurrency": policy.concurrency,
    }


def _seconds(milliseconds: int | None) -> float | None:
    if milliseconds is None:
        return None
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000
