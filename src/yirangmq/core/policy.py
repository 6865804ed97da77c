"""Queue policy: the document's members with defaults and limits, quotas, backoff, and server defaults.

Documents have seconds, the values integer milliseconds. No other module repeats the defaults.

A quota counts unfinished messages: ready, delayed, held, claimed and leased. Their bytes are those of payloads and of
the envelopes' other members. A check returns how much must be dropped first, or the refusal.

A member that is null in the policy has the value of the server's settings (``Defaults``). Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from yirangmq.core import validation
from yirangmq.core.backoff import backoff_delay
from yirangmq.core.cron import Cron, read_cron
from yirangmq.core.dispatch import Dispatch, Strategy, read_dispatch, show_dispatch
from yirangmq.core.errors import BadInput, BadPolicy, QuotaExceeded
from yirangmq.core.message import MAX_TRACEBACK, Counts
from yirangmq.core.processor import EVERY, Chain, read_chain, show_chain
from yirangmq.core.validation import Fields, kind
from yirangmq.core.webhook import Webhook, read_webhook, show_webhook

# -- quotas ------------------------------------------------------------------------------------------------------------

REJECT, DROP_OLDEST = "reject", "dropOldest"
RESERVE_BYTES = 16 * 1024 * 1024
"""Disk space reserved for draining a full store: twice the WAL of SQLite at its checkpoint, so that all of it can be
copied into the database."""
RETRY_AFTER = 5.0
"""Seconds after which a refused producer should retry: long enough for consumers to free space, and not yet a
noticeable pause."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of a queue; 0 is no limit."""

    max_messages: int = 0
    max_bytes: int = 0
    on_full: str = REJECT

    @property
    def is_set(self) -> bool:
        return self.max_messages > 0 or self.max_bytes > 0


class MessageLoad(NamedTuple):
    """Number of messages, and their bytes in total."""

    messages: int
    bytes: int


def unfinished(counts: Counts) -> int:
    return counts.ready + counts.delayed + counts.held + counts.claimed + counts.leased


def surplus(quota: Quota, held: MessageLoad, incoming: MessageLoad) -> MessageLoad:
    """Return how much of ``held`` must be dropped before ``incoming`` fits."""
    messages = held.messages + incoming.messages - quota.max_messages if quota.max_messages else 0
    size = held.bytes + incoming.bytes - quota.max_bytes if quota.max_bytes else 0
    return MessageLoad(max(0, messages), max(0, size))


def refusal(quota: Quota, queue: str, held: MessageLoad, incoming: MessageLoad) -> QuotaExceeded | None:
    """Return the error for which ``incoming`` is refused while all of ``held`` stays; None if it fits."""
    for most, have, add, what in (
        (quota.max_messages, held.messages, incoming.messages, "messages"),
        (quota.max_bytes, held.bytes, incoming.bytes, "bytes"),
    ):
        if most and add > most:
            return QuotaExceeded(f"queue {queue!r} takes {most} {what} in all, and this is {add}; that never fits")
        if most and have + add > most:
            return QuotaExceeded(
                f"queue {queue!r} takes {most} {what} and has {have} unfinished; try again in {RETRY_AFTER:g} s"
            )
    return None


def queues_refusal(most: int, have: int, incoming: list[str]) -> QuotaExceeded | None:
    """Return the error for which these new queues are refused; None if they are within ``max_queues``."""
    if have + len(incoming) <= most:
        return None
    which = f"queue {incoming[0]!r}" if len(incoming) == 1 else f"{len(incoming)} new queues"
    return QuotaExceeded(
        f"{which}: this server has {have} queues and allows {most}; delete queues that are not used, or raise the "
        "setting max_queues",
        field="max_queues",
    )


def store_refusal(most: int, used: int | None) -> QuotaExceeded | None:
    """Return the error for which publishing is refused by a store of ``most`` bytes; None if it is smaller, or its size
    is unknown."""
    if not most or used is None or used < most:
        return None
    return QuotaExceeded(
        f"the store has {used >> 20} MiB in use, and this server allows {most >> 20}; consuming continues, "
        f"try again in {RETRY_AFTER:g} s"
    )


# -- policy ------------------------------------------------------------------------------------------------------------

Answer = TypeVar("Answer")
DAY_MS = 86_400_000
BACKOFFS = ("exponential", "linear", "fixed")
MAX_BODY = 64 * 1024 * 1024
"""Upper bound of a policy's ``maxBytes``, in bytes: a message is held in memory while it is processed."""
DLQ_SUFFIX = "-dlq"
MAX_DLQ_NAME_CHARS = 199
"""Maximum length of the default name of a dead-letter queue, in characters: within the 200 of a name, and never the
name of the queue itself."""
MAX_SCHEDULES = 100
MAX_CONCURRENCY = 10**9
MAX_SCHEDULE_NAME_CHARS = 80
"""Maximum length of a schedule's name, in characters: a scheduled message's id is the name and the time, and an id has
at most 100."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    limit: int | None = 5
    """Maximum number of retries; None: no limit."""
    backoff: str = "exponential"
    initial_ms: int = 1_000
    max_ms: int = 60_000
    jitter: float = 0.0
    poison_after: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    enabled: bool = True
    queue: str = ""
    retention_ms: int = 14 * DAY_MS
    when_disabled: str = "drop"
    traceback_chars: int = 4000
    """Maximum length of the traceback that is stored with a failure, in characters; 0: none."""


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    enabled: bool = True
    retention_ms: int = 7 * DAY_MS
    max_messages: int = 10_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of a queue: publish ``message`` each time ``cron`` fires in ``timezone``."""

    name: str
    cron: Cron
    timezone: str
    message: Any


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Policy of one queue. ``dlq.queue`` is always set: ``<queue>-dlq`` unless the policy names another."""

    visibility_ms: int = 30_000
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dlq: DeadLetterPolicy = field(default_factory=DeadLetterPolicy)
    archive: ArchivePolicy = field(default_factory=ArchivePolicy)
    dedup_ms: int = 300_000
    ttl_ms: int = 0
    on_expire: str = "drop"
    requeue: str = "back"
    max_body: int = 1_048_576
    tombstone_ms: int = 600_000
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paused: bool = False
    quota: Quota = field(default_factory=Quota)
    schedules: tuple[Schedule, ...] = ()
    webhook: Webhook | None = None
    dispatch: Dispatch | None = None
    chain: Chain | None = None
    """Processor that a message passes before it is stored. This and the next five members: None is the server's
    default (``Defaults``)."""
    unique: bool | None = None
    concurrency: int | None = None
    draft_ms: int | None = None
    claim_ms: int | None = None
    active_ms: int | None = None

    @property
    def is_ordered(self) -> bool:
        """True if messages are leased one at a time, in strict order."""
        return self.dispatch is not None and self.dispatch.strategy is Strategy.ORDERED

    @property
    def keeps_places(self) -> bool:
        """True if a message that returns to ready keeps its place."""
        return self.requeue == "front" or self.is_ordered


def read_policy(given: object, queue: str) -> QueuePolicy:
    """Parse a policy document. Every member is optional; unknown members and impossible numbers raise ``BadPolicy``."""
    top = Fields(given, error=BadPolicy)
    visibility = _ms(top, "visibilityTimeoutSec", 30, least=0.001)
    retry = _read_retry(top.inner("retry"))
    dlq = _read_dlq(top.inner("dlq"), queue)
    archive = _read_archive(top.inner("archive"))
    policy = QueuePolicy(
        visibility_ms=visibility,
        retry=retry,
        dlq=dlq,
        archive=archive,
        dedup_ms=_ms(top, "dedupWindowSec", 300),
        ttl_ms=_ms(top, "ttlSec", 0),
        on_expire=top.choice("onExpire", "drop", ("drop", "dead")),
        requeue=top.choice("requeue", "back", ("back", "front")),
        max_body=top.whole("maxBytes", 1_048_576, least=1, most=MAX_BODY),
        tombstone_ms=_ms(top, "tombstoneSec", 600),
        schemas=_read_schemas(top.take("schemas", {})),
        paused=top.flag("paused", False),
        quota=_read_quota(top.inner("quota")),
        schedules=_read_schedules(top.take("schedules", [])),
        webhook=read_webhook(top.take("webhook", None)),
        dispatch=read_dispatch(top.take("dispatch", None), queue),
        chain=read_chain(top.take("processor", None), queue),
        unique=None if top.is_null("unique") else top.flag("unique", False),
        concurrency=None if top.is_null("concurrency") else top.whole("concurrency", 0, least=0, most=MAX_CONCURRENCY),
        draft_ms=_ms_or_null(top, "draftSec"),
        claim_ms=_ms_or_null(top, "claimSec"),
        active_ms=_ms_or_null(top, "activeSec"),
    )
    top.done()
    _check_recorded(policy)
    return policy


def _check_recorded(policy: QueuePolicy) -> None:
    """Refuse a hook that records messages if the policy keeps no history of done messages."""
    hooks = policy.chain.hooks if policy.chain is not None else ()
    for number, hook in enumerate(hooks):
        if hook.is_recording and not (policy.archive.enabled and policy.archive.max_messages):
            raise BadPolicy(
                "needs archive.enabled, or nothing is recorded", field=f"processor.hooks[{number}].original"
            )


def _read_retry(part: Fields) -> RetryPolicy:
    retry = RetryPolicy(
        limit=None if part.is_explicit_null("limit") else part.whole("limit", 5, least=0, most=1_000_000),
        backoff=part.choice("backoff", "exponential", BACKOFFS),
        initial_ms=_ms(part, "initialDelaySec", 1),
        max_ms=_ms(part, "maxDelaySec", 60),
        jitter=part.number("jitter", 0.0, least=0, most=1),
        poison_after=part.whole("poisonAfter", 0, least=0, most=1_000_000),
    )
    part.done()
    if retry.max_ms < retry.initial_ms:
        raise BadPolicy("must not be smaller than retry.initialDelaySec", field="retry.maxDelaySec")
    return retry


def default_dlq_name(queue: str) -> str:
    """Return the name of a queue's dead-letter queue where its policy names none."""
    return queue[: MAX_DLQ_NAME_CHARS - len(DLQ_SUFFIX)] + DLQ_SUFFIX


def _read_dlq(part: Fields, queue: str) -> DeadLetterPolicy:
    given = part.take("queue", default_dlq_name(queue))
    name = _named(part.name("queue"), validation.check_queue, given)
    if name == queue:
        raise BadPolicy("must not be the queue itself", field=part.name("queue"))
    dlq = DeadLetterPolicy(
        enabled=part.flag("enabled", True),
        queue=name,
        retention_ms=round(part.number("retentionDays", 14, least=0, most=3660) * DAY_MS),
        when_disabled=part.choice("whenDisabled", "drop", ("drop", "park")),
        traceback_chars=part.whole("tracebackChars", 4000, least=0, most=MAX_TRACEBACK),
    )
    part.done()
    return dlq


def _read_archive(part: Fields) -> ArchivePolicy:
    archive = ArchivePolicy(
        enabled=part.flag("enabled", True),
        retention_ms=round(part.number("retentionDays", 7, least=0, most=3660) * DAY_MS),
        max_messages=part.whole("maxMessages", 10_000, least=0, most=10**12),
    )
    part.done()
    return archive


def _read_schemas(given: object) -> Mapping[str, Mapping[str, Any]]:
    """Parse ``{type: {version: schema}}``; version ``*`` is for every version without a schema."""
    schemas: dict[str, dict[str, Any]] = {}
    if not isinstance(given, Mapping):
        raise BadPolicy("must be an object of message types", field="schemas")
    for type, versions in given.items():
        if not isinstance(versions, Mapping):
            raise BadPolicy("must be an object of versions", field=f"schemas.{type}")
        for version, schema in versions.items():
            if not isinstance(schema, Mapping | bool):
                raise BadPolicy("must be a JSON Schema", field=f"schemas.{type}.{version}")
        schemas[str(type)] = dict(versions)
    return schemas


def _read_quota(part: Fields) -> Quota:
    quota = Quota(
        max_messages=part.whole("maxMessages", 0, least=0, most=10**12),
        max_bytes=part.whole("maxBytes", 0, least=0, most=2**60),
        on_full=part.choice("onFull", REJECT, (REJECT, DROP_OLDEST)),
    )
    part.done()
    return quota


def _read_schedules(given: object) -> tuple[Schedule, ...]:
    if not isinstance(given, list | tuple) or len(given) > MAX_SCHEDULES:
        raise BadPolicy(f"must be an array of at most {MAX_SCHEDULES}, not {kind(given)}", field="schedules")
    found: dict[str, Schedule] = {}
    for number, one in enumerate(given):
        part = Fields(one, f"schedules[{number}]", BadPolicy)
        schedule = _read_schedule(part)
        part.done()
        if schedule.name in found:
            raise BadPolicy(f"{schedule.name!r} is there twice", field=part.name("name"))
        found[schedule.name] = schedule
    return tuple(found.values())


def _read_schedule(part: Fields) -> Schedule:
    name = _named(part.name("name"), validation.check_id, part.take("name", None))
    if len(name) > MAX_SCHEDULE_NAME_CHARS:
        raise BadPolicy(f"has at most {MAX_SCHEDULE_NAME_CHARS} characters", field=part.name("name"))
    cron = _named(part.name("cron"), lambda text, _: read_cron(text), part.take("cron", None))
    timezone = part.take("timezone", "UTC")
    if not isinstance(timezone, str):
        raise BadPolicy(f"must be the name of a time zone, not {kind(timezone)}", field=part.name("timezone"))
    message = part.take("message", None)
    if message is None:
        raise BadPolicy("is required: the payload to publish", field=part.name("message"))
    return Schedule(name, cron, timezone, message)


def _named(field: str, check: Callable[[object, str], Answer], value: object) -> Answer:
    """Call ``check``, and turn its ``BadInput`` into ``BadPolicy``."""
    try:
        return check(value, field)
    except BadInput as error:
        raise BadPolicy(str(error).removeprefix(f"{field}: "), field=field) from None


def _ms(part: Fields, key: str, default: float, *, least: float = 0) -> int:
    return round(part.number(key, default, least=least, most=validation.MAX_SECONDS) * 1000)


def _ms_or_null(part: Fields, key: str) -> int | None:
    return None if part.is_null(key) else _ms(part, key, 0, least=0.001)


def show_policy(policy: QueuePolicy) -> dict[str, Any]:
    """Return the policy as a document with every member; ``read_policy`` of it returns an equal policy."""
    retry, dlq, archive, quota = policy.retry, policy.dlq, policy.archive, policy.quota
    return {
        "visibilityTimeoutSec": _seconds(policy.visibility_ms),
        "retry": {
            "limit": retry.limit,
            "backoff": retry.backoff,
            "initialDelaySec": _seconds(retry.initial_ms),
            "maxDelaySec": _seconds(retry.max_ms),
            "jitter": retry.jitter,
            "poisonAfter": retry.poison_after,
        },
        "dlq": {
            "enabled": dlq.enabled,
            "queue": dlq.queue,
            "retentionDays": _plain(dlq.retention_ms / DAY_MS),
            "whenDisabled": dlq.when_disabled,
            "tracebackChars": dlq.traceback_chars,
        },
        "archive": {
            "enabled": archive.enabled,
            "retentionDays": _plain(archive.retention_ms / DAY_MS),
            "maxMessages": archive.max_messages,
        },
        "dedupWindowSec": _seconds(policy.dedup_ms),
        "ttlSec": _seconds(policy.ttl_ms),
        "onExpire": policy.on_expire,
        "requeue": policy.requeue,
        "maxBytes": policy.max_body,
        "tombstoneSec": _seconds(policy.tombstone_ms),
        "schemas": {name: dict(versions) for name, versions in policy.schemas.items()},
        "paused": policy.paused,
        "quota": {"maxMessages": quota.max_messages, "maxBytes": quota.max_bytes, "onFull": quota.on_full},
        "schedules": [_show_schedule(schedule) for schedule in policy.schedules],
        "webhook": show_webhook(policy.webhook),
        "dispatch": show_dispatch(policy.dispatch),
        "processor": show_chain(policy.chain),
        "unique": policy.unique,
        "concurrency": policy.concurrency,
        "draftSec": _seconds_or_null(policy.draft_ms),
        "claimSec": _seconds_or_null(policy.claim_ms),
        "activeSec": _seconds_or_null(policy.active_ms),
    }


def _show_schedule(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "cron": schedule.cron.text,
        "timezone": schedule.timezone,
        "message": schedule.message,
    }


def _seconds(milliseconds: int) -> float:
    return _plain(milliseconds / 1000)


def _seconds_or_null(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else _seconds(milliseconds)


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


# -- retry backoff -----------------------------------------------------------------------------------------------------


class RandomFraction(NamedTuple):
    """Random number from 0 to 1, passed in by the caller. Only jitter uses it."""

    fraction: float = 0.5


def backoff_ms(retry: RetryPolicy, attempt: int, chance: RandomFraction = RandomFraction()) -> int:  # noqa: B008
    """Return the delay in ms after the ``attempt``-th failure: 1, 2, 4, 8, 16 … s by default, up to ``max_ms``."""
    first, factor = retry.initial_ms, 1
    if retry.backoff == "exponential":
        factor = 2
    elif retry.backoff == "linear":
        first *= attempt
    return round(backoff_delay(first, retry.max_ms, factor, retry.jitter, attempt, chance.fraction))


# -- server defaults ---------------------------------------------------------------------------------------------------

DEFAULT_MAX_BODY = QueuePolicy().max_body


@dataclass(frozen=True, slots=True)
class Defaults:
    """Server-wide defaults of policy members. The values here are those of the HTTP queue's API if a server sets no
    others."""

    unique: bool = False
    draft_ms: int = 60_000
    claim_ms: int = 60_000
    active_ms: int = 300_000
    concurrency: int | None = None
    """Maximum number of messages leased at the same time; None: no limit."""
    set_body: int = DEFAULT_MAX_BODY
    chains: Mapping[str, Chain] = field(default_factory=dict)
    """Processors by name of queue; ``*`` is for all others."""
    hooks: tuple[str, ...] = ()
    """Modules and packages with functions that processors may name as hooks."""
    max_queues: int = 0
    """Maximum number of queues; 0: no limit, as in a program that opens a store without a server."""

    def chain_in(self, policy: QueuePolicy, queue: str) -> Chain | None:
        chain = policy.chain
        if chain is not None or not self.chains:
            return chain
        return self.chains.get(queue) or self.chains.get(EVERY)

    def unique_in(self, policy: QueuePolicy) -> bool:
        return self.unique if policy.unique is None else policy.unique

    def draft_in(self, policy: QueuePolicy) -> int:
        return self.draft_ms if policy.draft_ms is None else policy.draft_ms

    def claim_in(self, policy: QueuePolicy) -> int:
        return self.claim_ms if policy.claim_ms is None else policy.claim_ms

    def active_in(self, policy: QueuePolicy) -> int:
        return self.active_ms if policy.active_ms is None else policy.active_ms

    def concurrency_in(self, policy: QueuePolicy) -> int | None:
        return self.concurrency if policy.concurrency is None else policy.concurrency

    def set_body_in(self, policy: QueuePolicy) -> int:
        """Return the maximum size of a draft's content, in bytes. The policy's ``maxBytes`` wins if it is not the
        default."""
        return self.set_body if policy.max_body == DEFAULT_MAX_BODY else policy.max_body
