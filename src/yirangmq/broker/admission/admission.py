"""Admission control by a queue's processor, the messages its hooks derive, and the policy's JSON Schemas.

Every message of a queue with a processor passes its chain of checks and hooks here, for all protocols. Nothing is
written here.

Checks of up to ``INLINE_BYTES`` run inside the transaction. Hooks, and checks of more bytes, run outside it: the job
stops with the control-flow exception ``NeedsCheck``. The committer passes the messages to ``broker.admission.workers``,
then runs the job again with the verdicts. A verdict is valid for the chain that produced it: after a policy change the
message is checked again.

The header of a message derived by a hook names its parent. Its id is a hash of the parent's queue, id and payload, the
hook and a number, so a repeated parent derives the same messages. A cycle of queues is refused.

A policy's ``schemas`` apply per message type and version. The JSON Schema library is loaded when a policy first needs
it."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from operator import itemgetter
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.broker.dead_letter_sources import check_publish
from yirangmq.broker.quota import added_load, enforce_quota
from yirangmq.core.errors import BadInput, BadPolicy, HookFailed, QueueError, TooLarge, Unfit
from yirangmq.core.message import RANK_LAST, Envelope, payload_of
from yirangmq.core.policy import Defaults, QueuePolicy
from yirangmq.core.ports import Transaction
from yirangmq.core.processor import Chain, Hook, check_hooks, may_run, refusal
from yirangmq.format.envelope import NewMessage, build, header_of, with_digest
from yirangmq.format.json_codec import dumps, loads
from yirangmq.format.json_schema import compiled, first_problem

if TYPE_CHECKING:
    from yirangmq.core.payload_checks import Schema


# -- derived messages --------------------------------------------------------------------------------------------------

Produced = tuple[tuple[Hook, NewMessage], ...]
"""The new messages derived from one message, each with the hook that produced it."""


class DerivedMessage(NamedTuple):
    """A derived message. ``parent`` is the index of the message that it was derived from."""

    parent: int
    envelope: Envelope


def derive_messages(
    envelopes: Sequence[Envelope], produced: Sequence[Produced], now: int, *, is_lenient: bool = False
) -> dict[str, list[DerivedMessage]]:
    """Build the derived messages, by target queue. ``is_lenient``: skip invalid ones, do not raise ``HookFailed``."""
    found: dict[str, list[DerivedMessage]] = {}
    for place, (envelope, new_ones) in enumerate(zip(envelopes, produced, strict=True)):
        for number, (hook, new) in enumerate(new_ones):
            try:
                child = _child(envelope, hook, new, number, now)
            except HookFailed:
                if not is_lenient:
                    raise
                continue
            found.setdefault(hook.produces, []).append(DerivedMessage(place, child))
    return found


def at_once(envelope: Envelope) -> Envelope:
    """Return the envelope without delay, expiry, group and target: a recorded message is never delivered."""
    return envelope._replace(available_at=envelope.published_at, expires_at=0, group=0, target=0)


def _child(parent: Envelope, hook: Hook, new: NewMessage, number: int, now: int) -> Envelope:
    """Build a derived message. Its id follows from its parent and the hook, so a repeated parent gives a duplicate."""
    name = "\0".join((parent.queue, parent.id, hook.name, str(number), sha256(parent.payload).hexdigest()))
    inherited: dict[str, Any] = {}
    if new.priority is None and parent.rank != RANK_LAST:
        inherited["priority"] = parent.rank
    if new.trace_id is None and '"traceId"' in parent.header:
        inherited["trace_id"] = loads(parent.header.encode()).get("traceId")
    try:
        child = build(hook.produces, replace(new, **inherited), sha256(name.encode()).hexdigest()[:32], now)
    except BadInput as error:
        raise HookFailed(f"hook {hook.name} returned an invalid message: {error}", field="processor.hooks") from None
    cause = {"queue": parent.queue, "messageId": parent.id, "hook": hook.name}
    header = dumps({"causation": cause, **(loads(child.header.encode()) if child.header else {})}).decode()
    available = parent.available_at if not new.delay else child.available_at
    expires = parent.expires_at if new.ttl is None else child.expires_at
    return child._replace(header=header, available_at=max(available, now), expires_at=expires)


# -- JSON Schemas of the policies --------------------------------------------------------------------------------------

MAX_COMPILED = 100
"""Upper bound of policies, and of processor checks, with cached compiled schemas."""


class Schemas:
    """Cache of the compiled JSON Schemas of policies."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Mapping[str, Mapping[str, Any]], dict[tuple[str, str], Any]]] = {}

    def check_policy(self, policy: QueuePolicy) -> None:
        """Compile every schema now, so that a broken one is refused before it is stored."""
        for kind, versions in policy.schemas.items():
            for version in versions:
                self._validator(policy, kind, version)

    def complaint(self, envelope: Envelope, policy: QueuePolicy) -> str:
        """Return why the message violates its schema, with the field; "" if it is valid or has no schema."""
        try:
            header = header_of(envelope)
        except BadInput as trouble:  # damaged in the store
            return f"header: {trouble}"
        kind = header.get("type")
        versions = policy.schemas.get(str(kind)) if kind is not None else None
        if versions is None:
            return ""
        version = str(header.get("version", "*"))
        validator = self._validator(policy, str(kind), version if version in versions else "*")
        if validator is None:
            return ""
        if not envelope.is_json:
            return "payload: is not JSON, and this type has a schema"
        try:
            value = loads(envelope.payload)
        except BadInput as trouble:  # a number that no float can hold
            return f"payload: {trouble}"
        return first_problem(validator, value)

    def _validator(self, policy: QueuePolicy, kind: str, version: str) -> Any:
        schema = policy.schemas[kind].get(version)
        if schema is None:
            return None
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.clear()  # bounds the cache; schemas in use are compiled again
        known = self._compiled.get(id(policy.schemas))
        if known is None or known[0] is not policy.schemas:
            known = self._compiled[id(policy.schemas)] = (policy.schemas, {})
        if (kind, version) not in known[1]:
            known[1][kind, version] = compiled(schema, f"schemas.{kind}.{version}", BadPolicy)
        return known[1][kind, version]


# -- admission ---------------------------------------------------------------------------------------------------------

INLINE_BYTES = 256 * 1024
"""Upper bound of payload bytes checked inside a transaction: about 1 ms per check. More would delay the other requests
of the commit."""
MAX_REFUSALS_LOGGED = 10
"""Upper bound of log lines per second about refused messages; the other refusals are only counted."""
Key = tuple[str, str, str, bytes]
log = logging.getLogger("yirangmq")


class AdmissionVerdict(NamedTuple):
    """Result of one message in one chain. ``produced``: the derived messages, each with its hook."""

    chain: Chain
    error: QueueError | None = None
    produced: Produced = ()


Verdicts = dict[Key, AdmissionVerdict]


class NeedsCheck(Exception):
    """Control flow, not an error: these messages need checks that must run outside the transaction.

    The committer catches it and runs the job again with the verdicts. Protocols never see it."""

    def __init__(self, queue: str, chain: Chain, envelopes: Sequence[Envelope]) -> None:
        super().__init__(queue)
        self.queue = queue
        self.chain = chain
        self.envelopes = envelopes


class Admitted(NamedTuple):
    """Messages that passed admission.

    ``envelopes`` are the messages to be stored. ``derived`` are the derived messages by queue. ``recorded`` are the
    indexes of messages that go directly to the history."""

    envelopes: Sequence[Envelope]
    derived: Mapping[str, list[DerivedMessage]]
    recorded: frozenset[int]


class AdmissionControl:
    """Admission control of one store.

    Used by one thread at a time, like ``QueueOperations``. Only ``check_message`` and ``may_run`` are also called by
    the threads of the check workers."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._compiled: dict[int, tuple[Schema, Any]] = {}
        self._rules: ModuleType | None = None
        self.known_verdicts: Verdicts | None = None
        """Verdicts for the current job; set by the committer."""
        self.can_wait = False
        """True if the committer can have messages checked outside a transaction."""
        self.is_busy: Callable[[str], bool] = lambda queue: False
        """Return True while messages of the queue are being checked; later messages then wait behind them."""
        self._logged_at = 0.0
        self._logged = 0

    def chain_of(self, transaction: Transaction, queue: str) -> Chain | None:
        return self._defaults.chain_in(transaction.policy(queue), queue)

    # -- before storing -------------------------------------------------------------------------------------------

    def admit(
        self, transaction: Transaction, queue: str, chain: Chain, envelopes: Sequence[Envelope], now: int
    ) -> Admitted:
        """Run all checks on the messages and on those derived from them.

        Raises ``Unfit``, ``HookFailed``, ``TooLarge``, ``QuotaExceeded`` or ``NeedsCheck``."""
        if chain.hooks:
            self.clear(transaction, queue, envelopes)
        born: dict[str, list[Envelope]] = {}
        admitted = self._admitted(transaction, queue, chain, envelopes, now, (queue,), born)
        if born:
            check_publish(transaction, {queue: None, **dict.fromkeys(born)}, self._defaults.max_queues)
        self._check_quota(transaction, born, now)
        return admitted

    def check_all(self, transaction: Transaction, queues: Mapping[str, Sequence[Envelope]], now: int) -> None:
        """Like ``admit`` for a job on several queues. Call it before the job's first write."""
        born: dict[str, list[Envelope]] = {}
        for queue, envelopes in queues.items():
            chain = self.chain_of(transaction, queue)
            if chain is not None and envelopes:
                self._admitted(transaction, queue, chain, envelopes, now, (queue,), born)
        if born:
            check_publish(transaction, {**dict.fromkeys(queues), **dict.fromkeys(born)}, self._defaults.max_queues)
            self._check_quota(transaction, {to: [*queues.get(to, ()), *found] for to, found in born.items()}, now)

    def clear(
        self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope], lineage: tuple[str, ...] = ()
    ) -> None:
        """Raise ``NeedsCheck`` if a message, or one derived from it, needs checks outside the transaction.

        Refusals are not raised here. A job that writes before it admits its last message calls this first."""
        chain = self.chain_of(transaction, queue)
        if chain is None or not envelopes or not (chain.hooks or self._must_wait(queue, chain, envelopes)):
            return
        verdicts = self._verdicts(queue, chain, envelopes)
        for target, found in derive_messages(envelopes, [one.produced for one in verdicts], 0, is_lenient=True).items():
            if target != queue and target not in lineage:
                self.clear(transaction, target, [child.envelope for child in found], (*lineage, queue))

    def complaints(self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope]) -> list[str]:
        """Return for each message why it can never be accepted, or ""."""
        chain = self.chain_of(transaction, queue)
        if chain is None or not envelopes:
            return [""] * len(envelopes)
        verdicts = self._verdicts(queue, chain, envelopes)
        return [str(one.error) if isinstance(one.error, Unfit) else "" for one in verdicts]

    def refused(self, queue: str, error: QueueError) -> None:
        """Log a refusal, at most ``MAX_REFUSALS_LOGGED`` per second."""
        now = monotonic()
        if now - self._logged_at >= 1:
            self._logged_at, self._logged = now, 0
        self._logged += 1
        if self._logged <= MAX_REFUSALS_LOGGED:
            log.warning("processor_message_rejected", extra={"values": {"queue": queue, "error": str(error)}})

    def _admitted(
        self,
        transaction: Transaction,
        queue: str,
        chain: Chain,
        envelopes: Sequence[Envelope],
        now: int,
        lineage: tuple[str, ...],
        born: dict[str, list[Envelope]],
    ) -> Admitted:
        verdicts = self._verdicts(queue, chain, envelopes)
        for one in verdicts:
            if one.error is not None:
                raise _copy_error(one.error)
        derived = derive_messages(envelopes, [one.produced for one in verdicts], now) if chain.hooks else {}
        recorded = {place for place, one in enumerate(verdicts) if any(hook.is_recording for hook, _ in one.produced)}
        for target, found in derived.items():
            if target in lineage:
                raise Unfit(f"the processors form a cycle: {' → '.join((*lineage, target))}", field="processor")
            self._check_target(transaction, target, [child.envelope for child in found], now, lineage, born)
        kept = _stamped(envelopes) if chain.integrity else envelopes
        if recorded:
            kept = [at_once(one) if place in recorded else one for place, one in enumerate(kept)]
        return Admitted(kept, derived, frozenset(recorded))

    def _check_target(
        self,
        transaction: Transaction,
        target: str,
        envelopes: list[Envelope],
        now: int,
        lineage: tuple[str, ...],
        born: dict[str, list[Envelope]],
    ) -> None:
        policy = transaction.policy(target)
        largest = max(len(envelope.payload) for envelope in envelopes)
        if largest > policy.max_body:
            raise TooLarge(f"a hook made {largest} bytes, queue {target!r} takes {policy.max_body}", field="payload")
        born.setdefault(target, []).extend(envelopes)
        chain = self._defaults.chain_in(policy, target)
        if chain is not None:
            self._admitted(transaction, target, chain, envelopes, now, (*lineage, target), born)

    def _check_quota(self, transaction: Transaction, coming: Mapping[str, list[Envelope]], now: int) -> None:
        for queue, envelopes in coming.items():
            policy = transaction.policy(queue)
            if policy.quota.is_set:
                load = added_load(transaction, policy, queue, envelopes)
                if load.messages:
                    enforce_quota(transaction, policy, queue, load, now)

    def _verdicts(self, queue: str, chain: Chain, envelopes: Sequence[Envelope]) -> list[AdmissionVerdict]:
        known = self.known_verdicts
        if known:
            found = [known.get(key_of(envelope)) for envelope in envelopes]
            missing = [
                envelope
                for envelope, one in zip(envelopes, found, strict=True)
                if one is None or (one.chain is not chain and one.chain != chain)
            ]
            if not missing:
                return [one for one in found if one is not None]
            if self._must_wait(queue, chain, missing):
                raise NeedsCheck(queue, chain, missing)
        elif self._must_wait(queue, chain, envelopes):
            raise NeedsCheck(queue, chain, envelopes)
        return [AdmissionVerdict(chain, self.check_message(chain, envelope)) for envelope in envelopes]

    def _must_wait(self, queue: str, chain: Chain, envelopes: Sequence[Envelope]) -> bool:
        if chain.hooks:
            return True
        if not self.can_wait or not chain.checks:
            return False
        return self.is_busy(queue) or sum(map(len, map(payload_of, envelopes))) > INLINE_BYTES

    # -- single messages ------------------------------------------------------------------------------------------

    def check_message(self, chain: Chain, envelope: Envelope) -> QueueError | None:
        """Run the checks of a chain on one message; return the refusal or None."""
        if not chain.checks:
            return None
        if self._rules is None:
            from yirangmq.core import payload_checks  # loaded with the first chain

            self._rules = payload_checks
        subject = self._rules.CheckedMessage(
            envelope.payload, envelope.is_json, lambda: header_of(envelope), loads, self._fits
        )
        try:
            found = self._rules.first_problem(chain.checks, subject)
        except BadInput as error:
            return unfit(envelope, "headers", "header", str(error))
        if found is None:
            return None
        check, (field, text) = found
        return unfit(envelope, check.name, field, text)

    def check_without_hooks(self, needed: NeedsCheck) -> Verdicts:
        """Run the checks without hooks."""
        chain = needed.chain
        return {key_of(one): AdmissionVerdict(chain, self.check_message(chain, one)) for one in needed.envelopes}

    def may_run(self, hook: Hook) -> QueueError | None:
        if may_run(hook, self._defaults.hooks):
            return None
        return HookFailed(refusal(hook, self._defaults.hooks), field="processor.hooks")

    def check_hooks(self, chain: Chain | None) -> None:
        """Raise ``BadPolicy`` with the first hook that this server does not allow."""
        check_hooks(chain, self._defaults.hooks)

    def _fits(self, check: "Schema", value: Any) -> str:
        known = self._compiled.get(id(check))
        if known is None or known[0] is not check:
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.clear()
            known = self._compiled[id(check)] = (check, compiled(check.schema, "processor", BadPolicy))
        return first_problem(known[1], value)


def check_schemas(chain: Chain | None) -> None:
    """Compile every schema now, so that a broken one is refused before it is stored."""
    if chain is None or not chain.checks:
        return
    from yirangmq.core.payload_checks import Schema

    for number, check in enumerate(chain.checks):
        if isinstance(check, Schema):
            compiled(check.schema, f"processor.checks[{number}].schema", BadPolicy)


key_of: Callable[[Envelope], Key] = itemgetter(*map(Envelope._fields.index, ("queue", "id", "header", "payload")))


def unfit(envelope: Envelope, what: str, field: str, text: str) -> Unfit:
    """Build a refusal that names the field, the message, the queue, and the check or hook."""
    return Unfit(f"{text} (message {envelope.id}, check {what!r} of queue {envelope.queue!r})", field=field)


def _copy_error(error: QueueError) -> QueueError:
    """Copy an error, because each raise changes the exception object (traceback, context)."""
    field = error.field
    text = str(error).removeprefix(f"{field}: ") if field else str(error)
    return type(error)(text, field=field)


def _stamped(envelopes: Iterable[Envelope]) -> list[Envelope]:
    try:
        return [with_digest(envelope) for envelope in envelopes]
    except BadInput as error:
        if isinstance(error, Unfit | TooLarge):
            raise
        raise Unfit(str(error), field="header") from None
