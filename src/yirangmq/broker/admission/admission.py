"""Admission control by a queue's processor, the messages its hooks derive, and the policy's JSON Schemas.

Every message of a queue with a processor passes its chain of checks and hooks here, whatever protocol it came through.
Nothing is written here.

Checks of up to ``INLINE_BYTES`` run inside the transaction. Hooks, and checks of more, run outside it: the job stops
with the control-flow exception ``Uncleared``. The committer has ``broker.admission.workers`` check the messages, then
runs the job again with the verdicts. A verdict holds for the chain that gave it: after a policy change the message is
checked again.

A message that a hook derives names its cause in its header. Its id is a hash of the parent's queue, id and payload, the
hook and a number, so a repeated parent derives the same messages. A chain of queues that leads back to its beginning is
refused.

A policy's ``schemas`` apply per message type and version. The JSON Schema library is loaded when a policy first needs
it."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.broker.quota import check_new_queues, make_room, newcomers
from yirangmq.core.errors import BadInput, BadPolicy, HookFailed, QueueError, TooLarge, Unfit
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.policy import Defaults, QueuePolicy
from yirangmq.core.ports import Transaction
from yirangmq.core.processor import Chain, Hook, check_hooks, may_run, refusal
from yirangmq.format.envelope import NewMessage, build, header_of, with_digest
from yirangmq.format.json_codec import dumps, loads
from yirangmq.format.json_schema import compiled, first_complaint

if TYPE_CHECKING:
    from yirangmq.core.payload_checks import Schema


# -- derived messages --------------------------------------------------------------------------------------------------

Made = tuple[tuple[Hook, NewMessage], ...]
"""Of one message."""


class Child(NamedTuple):
    """A new message, and the place of the one that it was made from."""

    parent: int
    envelope: Envelope


def children_of(
    envelopes: Sequence[Envelope], made: Sequence[Made], now: int, *, is_lenient: bool = False
) -> dict[str, list[Child]]:
    """By queue. ``is_lenient``: one that cannot be is left out."""
    found: dict[str, list[Child]] = {}
    for place, (envelope, new_ones) in enumerate(zip(envelopes, made, strict=True)):
        for number, (hook, new) in enumerate(new_ones):
            try:
                child = _child(envelope, hook, new, number, now)
            except HookFailed:
                if not is_lenient:
                    raise
                continue
            found.setdefault(hook.produces, []).append(Child(place, child))
    return found


def at_once(envelope: Envelope) -> Envelope:
    """Nobody waits for it any more: neither its time nor its group nor its consumer matters."""
    return envelope._replace(available_at=envelope.published_at, expires_at=0, group=0, target=0)


def _child(parent: Envelope, hook: Hook, new: NewMessage, number: int, now: int) -> Envelope:
    """Its id follows from its parent: however often that is sent, it is the same message."""
    name = "\0".join((parent.queue, parent.id, hook.name, str(number), sha256(parent.payload).hexdigest()))
    inherited: dict[str, Any] = {}
    if new.priority is None and parent.rank != RANK_LAST:
        inherited["priority"] = parent.rank
    if new.trace_id is None and '"traceId"' in parent.header:
        inherited["trace_id"] = loads(parent.header.encode()).get("traceId")
    try:
        child = build(hook.produces, replace(new, **inherited), sha256(name.encode()).hexdigest()[:32], now)
    except BadInput as error:
        raise HookFailed(f"hook {hook.name} made a message that is none: {error}", field="processor.hooks") from None
    cause = {"queue": parent.queue, "messageId": parent.id, "hook": hook.name}
    header = dumps({"causation": cause, **(loads(child.header.encode()) if child.header else {})}).decode()
    available = parent.available_at if not new.delay else child.available_at
    expires = parent.expires_at if new.ttl is None else child.expires_at
    return child._replace(header=header, available_at=max(available, now), expires_at=expires)


# -- JSON Schemas of the policies --------------------------------------------------------------------------------------

MOST_COMPILED = 100
"""Policies whose schemas are kept ready."""


class Schemas:
    """Compiled schemas of the policies in use."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Mapping[str, Mapping[str, Any]], dict[tuple[str, str], Any]]] = {}

    def check_policy(self, policy: QueuePolicy) -> None:
        """Compile every schema now, so that a broken one is refused before it is stored."""
        for kind, versions in policy.schemas.items():
            for version in versions:
                self._validator(policy, kind, version)

    def complaint(self, envelope: Envelope, policy: QueuePolicy) -> str:
        """Why this message does not fit its schema, naming the field; "" if it does or has none."""
        try:
            header = header_of(envelope)
        except BadInput as trouble:  # damaged where it lay
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
        return first_complaint(validator, value)

    def _validator(self, policy: QueuePolicy, kind: str, version: str) -> Any:
        schema = policy.schemas[kind].get(version)
        if schema is None:
            return None
        if len(self._compiled) > MOST_COMPILED:
            self._compiled.clear()  # policies come and go; those in use are compiled again
        known = self._compiled.get(id(policy.schemas))
        if known is None or known[0] is not policy.schemas:
            known = self._compiled[id(policy.schemas)] = (policy.schemas, {})
        if (kind, version) not in known[1]:
            known[1][kind, version] = compiled(schema, f"schemas.{kind}.{version}", BadPolicy)
        return known[1][kind, version]


# -- admission ---------------------------------------------------------------------------------------------------------

INLINE_BYTES = 256 * 1024
"""Payloads checked inside a transaction: about a millisecond for each check; more would hold up everybody else."""
MOST_TOLD = 10
"""Log lines a second about what was refused; the rest is counted."""
Key = tuple[str, str, str, bytes]
log = logging.getLogger("yirangmq")


class Verdict(NamedTuple):
    """What came of one message in one chain. ``made``: new messages, each with the hook that made it."""

    chain: Chain
    error: QueueError | None = None
    made: Made = ()


Verdicts = dict[Key, Verdict]


class Uncleared(Exception):
    """These are to be looked at outside of the transaction first. Not one of our errors: doors do not catch it."""

    def __init__(self, queue: str, chain: Chain, envelopes: Sequence[Envelope]) -> None:
        super().__init__(queue)
        self.queue = queue
        self.chain = chain
        self.envelopes = envelopes


class Admitted(NamedTuple):
    """``envelopes`` as they are to be stored. ``children``: by queue. ``recorded``: places of those that are to be
    history at once."""

    envelopes: Sequence[Envelope]
    children: Mapping[str, list[Child]]
    recorded: frozenset[int]


class Gate:
    """Used with the verbs of one store, so by one thread at a time; ``judge`` may be used by any."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._compiled: dict[int, tuple[Schema, Any]] = {}
        self._rules: ModuleType | None = None
        self.cleared: Verdicts | None = None
        """Verdicts of the work under way; set by whoever runs it."""
        self.can_wait = False
        """Whoever runs the work can have messages looked at outside of a transaction."""
        self.is_busy: Callable[[str], bool] = lambda queue: False
        """Messages of this queue are being looked at: those that come after them wait behind them."""
        self._told_at = 0.0
        self._told = 0

    def chain_of(self, transaction: Transaction, queue: str) -> Chain | None:
        return self._defaults.chain_in(transaction.policy(queue), queue)

    # -- before storing -------------------------------------------------------------------------------------------

    def admit(
        self, transaction: Transaction, queue: str, chain: Chain, envelopes: Sequence[Envelope], now: int
    ) -> Admitted:
        """Everything that could stop these messages, and those made of them, is looked at: ``Unfit``, ``HookFailed``,
        ``TooLarge``, ``QuotaExceeded`` or ``Uncleared``."""
        if chain.hooks:
            self.clear(transaction, queue, envelopes)
        born: dict[str, list[Envelope]] = {}
        admitted = self._admitted(transaction, queue, chain, envelopes, now, (queue,), born)
        if born:
            check_new_queues(transaction, {queue: None, **dict.fromkeys(born)}, self._defaults.max_queues)
        self._check_room(transaction, born, now)
        return admitted

    def check_all(self, transaction: Transaction, queues: Mapping[str, Sequence[Envelope]], now: int) -> None:
        """The same for work on several queues, to be called before it writes anything."""
        born: dict[str, list[Envelope]] = {}
        for queue, envelopes in queues.items():
            chain = self.chain_of(transaction, queue)
            if chain is not None and envelopes:
                self._admitted(transaction, queue, chain, envelopes, now, (queue,), born)
        if born:
            check_new_queues(transaction, {**dict.fromkeys(queues), **dict.fromkeys(born)}, self._defaults.max_queues)
            self._check_room(transaction, {to: [*queues.get(to, ()), *found] for to, found in born.items()}, now)

    def clear(
        self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope], lineage: tuple[str, ...] = ()
    ) -> None:
        """``Uncleared`` if any of these, or of what is made of them, is to be looked at first; complaints are for
        later. To be called by work that may write before it comes to the last of them."""
        chain = self.chain_of(transaction, queue)
        if chain is None or not envelopes or not (chain.hooks or self._must_wait(queue, chain, envelopes)):
            return
        verdicts = self._verdicts(queue, chain, envelopes)
        for target, found in children_of(envelopes, [one.made for one in verdicts], 0, is_lenient=True).items():
            if target != queue and target not in lineage:
                self.clear(transaction, target, [child.envelope for child in found], (*lineage, queue))

    def complaints(self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope]) -> list[str]:
        """For each what makes it unfit for ever, "" if nothing does."""
        chain = self.chain_of(transaction, queue)
        if chain is None or not envelopes:
            return [""] * len(envelopes)
        verdicts = self._verdicts(queue, chain, envelopes)
        return [str(one.error) if isinstance(one.error, Unfit) else "" for one in verdicts]

    def refused(self, queue: str, error: QueueError) -> None:
        """Told in the log, as long as it is not too often."""
        now = monotonic()
        if now - self._told_at >= 1:
            self._told_at, self._told = now, 0
        self._told += 1
        if self._told <= MOST_TOLD:
            log.warning("refused by the processor", extra={"values": {"queue": queue, "why": str(error)}})

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
                raise _again(one.error)
        children = children_of(envelopes, [one.made for one in verdicts], now) if chain.hooks else {}
        recorded = {place for place, one in enumerate(verdicts) if any(hook.is_recording for hook, _ in one.made)}
        for target, found in children.items():
            if target in lineage:
                raise Unfit(f"the processors go round: {' → '.join((*lineage, target))}", field="processor")
            self._check_target(transaction, target, [child.envelope for child in found], now, lineage, born)
        kept = _stamped(envelopes) if chain.integrity else envelopes
        if recorded:
            kept = [at_once(one) if place in recorded else one for place, one in enumerate(kept)]
        return Admitted(kept, children, frozenset(recorded))

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

    def _check_room(self, transaction: Transaction, coming: Mapping[str, list[Envelope]], now: int) -> None:
        for queue, envelopes in coming.items():
            policy = transaction.policy(queue)
            if policy.quota.is_set:
                load = newcomers(transaction, policy, queue, envelopes)
                if load.messages:
                    make_room(transaction, policy, queue, load, now)

    def _verdicts(self, queue: str, chain: Chain, envelopes: Sequence[Envelope]) -> list[Verdict]:
        known = self.cleared
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
                raise Uncleared(queue, chain, missing)
        elif self._must_wait(queue, chain, envelopes):
            raise Uncleared(queue, chain, envelopes)
        return [Verdict(chain, self.checked(chain, envelope)) for envelope in envelopes]

    def _must_wait(self, queue: str, chain: Chain, envelopes: Sequence[Envelope]) -> bool:
        if chain.hooks:
            return True
        if not self.can_wait or not chain.checks:
            return False
        return self.is_busy(queue) or sum([len(envelope[8]) for envelope in envelopes]) > INLINE_BYTES

    # -- one message ----------------------------------------------------------------------------------------------

    def checked(self, chain: Chain, envelope: Envelope) -> QueueError | None:
        """What the checks say of it."""
        if not chain.checks:
            return None
        if self._rules is None:
            from yirangmq.core import payload_checks  # loaded with the first chain

            self._rules = payload_checks
        subject = self._rules.Subject(
            envelope.payload, envelope.is_json, lambda: header_of(envelope), loads, self._fits
        )
        try:
            found = self._rules.first_complaint(chain.checks, subject)
        except BadInput as error:
            return unfit(envelope, "headers", "header", str(error))
        if found is None:
            return None
        check, (field, text) = found
        return unfit(envelope, check.name, field, text)

    def looked_at(self, needed: Uncleared) -> Verdicts:
        """By the checks alone."""
        chain = needed.chain
        return {key_of(one): Verdict(chain, self.checked(chain, one)) for one in needed.envelopes}

    def may_run(self, hook: Hook) -> QueueError | None:
        if may_run(hook, self._defaults.hooks):
            return None
        return HookFailed(refusal(hook, self._defaults.hooks), field="processor.hooks")

    def check_hooks(self, chain: Chain | None) -> None:
        """``BadPolicy`` names the first one that may not run here."""
        check_hooks(chain, self._defaults.hooks)

    def _fits(self, check: "Schema", value: Any) -> str:
        known = self._compiled.get(id(check))
        if known is None or known[0] is not check:
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.clear()
            known = self._compiled[id(check)] = (check, compiled(check.schema, "processor", BadPolicy))
        return first_complaint(known[1], value)


def check_schemas(chain: Chain | None) -> None:
    """Compile every schema now, so that a broken one is refused before it is stored."""
    if chain is None or not chain.checks:
        return
    from yirangmq.core.payload_checks import Schema

    for number, check in enumerate(chain.checks):
        if isinstance(check, Schema):
            compiled(check.schema, f"processor.checks[{number}].schema", BadPolicy)


def key_of(envelope: Envelope) -> Key:
    return envelope[0], envelope[1], envelope[7], envelope[8]


def unfit(envelope: Envelope, what: str, field: str, text: str) -> Unfit:
    """Every refusal names the field, the message, the queue, and the check or hook."""
    return Unfit(f"{text} (message {envelope.id}, check {what!r} of queue {envelope.queue!r})", field=field)


def _again(error: QueueError) -> QueueError:
    """A new one each time: whoever catches an error may hang things on it."""
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
