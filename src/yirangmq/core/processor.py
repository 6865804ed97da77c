"""Processor of a queue: the checks, hooks and payload digest that a message passes before it is stored.

Has the processor documents, and the rule for which hooks a server may run: functions of the modules and packages that
its setting ``hooks`` names. ``broker.admission`` runs checks and hooks."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.validation import Fields, kind

if TYPE_CHECKING:
    from yirangmq.core.payload_checks import PayloadCheck

MAX_CHECKS = 50
MAX_HOOKS = 10
MAX_WORKERS = 16
EVERY = "*"
"""Key in a server's settings for every queue without an entry."""
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
NONE, SHA256 = "none", "sha256"
KEEP, RECORD = "keep", "record"


@dataclass(frozen=True, slots=True)
class Hook:
    """Hook of a processor: the function ``package.module:function``.

    ``produces``: the queue for the messages that the hook derives; "" is a hook that only accepts or refuses.
    ``original``: the message that they are derived from is kept in its queue (``keep``), or becomes done and is kept as
    history (``record``)."""

    name: str
    produces: str = ""
    original: str = KEEP
    timeout_ms: int = 5_000

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    @property
    def is_recording(self) -> bool:
        return self.original == RECORD


@dataclass(frozen=True, slots=True)
class Chain:
    integrity: bool = False
    checks: "tuple[PayloadCheck, ...]" = ()
    hooks: tuple[Hook, ...] = ()
    workers: int = 1
    """Maximum number of hooks of this queue that run at the same time."""


_DEFAULT = Chain()
_DEFAULT_HOOK = Hook("")


def may_run(hook: Hook, allowed: Collection[str]) -> bool:
    """Return True if the hook's module is one of the ``allowed`` modules, or inside one of these packages."""
    parts = hook.module.split(".")
    return any(".".join(parts[:n]) in allowed for n in range(1, len(parts) + 1))


def read_chain(given: object, queue: str, path: str = "processor") -> Chain | None:
    """Parse a processor document. Null is None, the server's default; an empty object is a processor that does
    nothing."""
    if given is None:
        return None
    from yirangmq.core.payload_check_parser import read_check  # loaded late: most queues have no processor

    part = Fields(given, path, BadPolicy)
    chain = Chain(
        integrity=part.choice("integrity", NONE, (NONE, SHA256)) == SHA256,
        checks=tuple(read_check(one, where) for one, where in _listed(part, "checks", MAX_CHECKS)),
        hooks=tuple(_read_hook(one, where, queue) for one, where in _listed(part, "hooks", MAX_HOOKS)),
        workers=part.whole("workers", _DEFAULT.workers, least=1, most=MAX_WORKERS),
    )
    part.done()
    return chain


def _listed(part: Fields, key: str, most: int) -> list[tuple[object, str]]:
    given = part.take(key, [])
    if not isinstance(given, list | tuple) or len(given) > most:
        raise BadPolicy(f"must be an array of at most {most}, not {kind(given)}", field=part.name(key))
    return [(one, f"{part.name(key)}[{number}]") for number, one in enumerate(given)]


def _read_hook(given: object, path: str, queue: str) -> Hook:
    part = Fields(given, path, BadPolicy)
    name = part.take("hook", None)
    if not isinstance(name, str) or len(name) > 200 or not NAME.fullmatch(name):
        raise BadPolicy(f"must be package.module:function, not {name!r}", field=part.name("hook"))
    produces = "" if part.is_null("produces") else _queue(part.take("produces", None), part.name("produces"))
    if produces == queue:
        raise BadPolicy("must be another queue", field=part.name("produces"))
    original = part.choice("original", _DEFAULT_HOOK.original, (KEEP, RECORD))
    if original == RECORD and not produces:
        raise BadPolicy("needs produces: a message is recorded when another takes its place", field=path)
    timeout = round(part.number("timeoutSec", _DEFAULT_HOOK.timeout_ms / 1000, least=0.01, most=600) * 1000)
    part.done()
    return Hook(name, produces, original, timeout)


def _queue(given: object, field: str) -> str:
    try:
        return validation.check_queue(given, field)
    except BadInput as error:
        raise BadPolicy(str(error).removeprefix(f"{field}: "), field=field) from None


def check_hooks(chain: Chain | None, allowed: Collection[str]) -> None:
    """Raise ``BadPolicy`` for the first hook that the server may not run."""
    for number, hook in enumerate(chain.hooks if chain is not None else ()):
        if not may_run(hook, allowed):
            raise BadPolicy(refusal(hook, allowed), field=f"processor.hooks[{number}].hook")


def refusal(hook: Hook, allowed: Collection[str]) -> str:
    known = f"only those of {', '.join(allowed)} may" if allowed else "none may"
    return f"{hook.name} may not run here: {known}, by the setting hooks"


def show_chain(chain: Chain | None) -> dict[str, Any] | None:
    """Return the document; ``read_chain`` of it returns an equal value."""
    if chain is None:
        return None
    return {
        "integrity": SHA256 if chain.integrity else NONE,
        "checks": [check.show() for check in chain.checks],
        "hooks": [_show_hook(hook) for hook in chain.hooks],
        "workers": chain.workers,
    }


def _show_hook(hook: Hook) -> dict[str, Any]:
    seconds = hook.timeout_ms / 1000
    return {
        "hook": hook.name,
        "produces": hook.produces or None,
        "original": hook.original,
        "timeoutSec": int(seconds) if seconds == int(seconds) else seconds,
    }


def read_chains(given: object, path: str) -> Mapping[str, Chain]:
    """Parse the processors of a server's settings: by queue, or ``*`` for all others."""
    if not isinstance(given, Mapping):
        raise BadPolicy(f"must be an object of queues, not {kind(given)}", field=path)
    chains: dict[str, Chain] = {}
    for name, document in given.items():
        where = f"{path}.{name}" if path else str(name)
        queue = EVERY if name == EVERY else _queue(name, where)
        chain = read_chain(document, queue, where)
        if chain is not None:
            chains[queue] = chain
    return chains


def module_names(value: object) -> tuple[str, ...]:
    """Read names of Python modules or packages: an array, or a text with commas between them."""
    given = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) and MODULE.fullmatch(one) for one in given):
        raise ValueError(f"must be names of Python modules with commas between them, not {value!r}")
    return tuple(given)
