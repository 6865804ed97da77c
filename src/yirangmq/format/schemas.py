"""JSON Schema: which one is for a message, compiled, and what does not fit. The library is loaded when it is needed.

A schema may come from a client that is not trusted. It is compiled without any way to read a file or to call a URL,
within the limits of ``schema_limits``, in a thread of its own with a time limit; the compiler releases the GIL, so
that an event loop goes on meanwhile if the caller is not on it. Compiled schemas are cached by their text: what was
checked in one thread is ready for all others."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Never

from yirangmq.core.errors import BadInput, MissingExtra, QuotaExceeded
from yirangmq.format.jsontext import dumps
from yirangmq.format.schema_limits import check_limits

COMPILE_SECONDS = 5.0
"""For one schema. Within the limits a compilation takes some 50 ms; a thread cannot be ended, so that one past this
time runs to its end while the caller has its error."""
MOST_COMPILING = 4
"""Compilations at the same time, those included that were given up; more are refused."""
MOST_CACHED = 100
REGEX_BYTES = 100 * 1024
"""Of one compiled pattern."""
REGEX_CACHE_BYTES = 256 * 1024
BACKTRACK_STEPS = 100_000
"""Patterns without lookaround and backreferences are matched in linear time. The others stop after so many steps,
about 4 ms, and the value does not fit."""


def chosen_schema(schemas: Mapping[str, Mapping[str, Any]], header: Mapping[str, Any]) -> Any:
    """By the type and version a message says it has, from ``{type: {version: schema}}``; None if there is none."""
    kind = header.get("type")
    versions = schemas.get(str(kind)) if kind is not None else None
    if versions is None:
        return None
    version = str(header.get("version", "*"))
    return versions.get(version if version in versions else "*")


class _Cache:
    """Compiled schemas by the digest of their text, the least recently used one dropped first. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[bytes, Any] = OrderedDict()

    def get(self, key: bytes) -> Any:
        with self._guard:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def put(self, key: bytes, validator: Any) -> None:
        with self._guard:
            self._known[key] = validator
            if len(self._known) > MOST_CACHED:
                self._known.popitem(last=False)


_cache = _Cache()
_compiling = threading.BoundedSemaphore(MOST_COMPILING)


def compiled(schema: Any, field: str, error: type[BadInput]) -> Any:
    """A validator. ``BadInput`` for a reference that leaves the document; ``error``, naming the field, for what is no
    JSON Schema or larger than the limits."""
    try:
        text = dumps(schema)
    except (BadInput, RecursionError):
        raise error("is not a JSON Schema: it cannot be written as JSON", field=field) from None
    key = sha256(text).digest()
    known = _cache.get(key)
    if known is None:
        check_limits(schema, len(text), field, error)
        known = _within_time(schema, field, error)
        _cache.put(key, known)
    return known


def _within_time(schema: Any, field: str, error: type[BadInput]) -> Any:
    try:
        import jsonschema_rs  # noqa: F401  (here, so that its loading is not part of the time)
    except ImportError:
        raise MissingExtra("schemas need the extra: pip install 'yirangmq[schema]'") from None
    if not _compiling.acquire(blocking=False):
        raise QuotaExceeded(f"{MOST_COMPILING} schemas are being compiled; try again later", field=field)
    outcome: list[Any] = []
    is_done = threading.Event()

    def work() -> None:
        try:
            outcome.append(_compile(schema))
        except Exception as problem:
            outcome.append(problem)
        finally:
            _compiling.release()
            is_done.set()

    threading.Thread(target=work, name="schema", daemon=True).start()
    if not is_done.wait(COMPILE_SECONDS):
        raise error(f"was not compiled within {COMPILE_SECONDS:g} s; make it smaller", field=field)
    [found] = outcome
    if isinstance(found, ValueError | TypeError):
        raise error(f"is not a JSON Schema: {_first_line(found)}", field=field)
    if isinstance(found, Exception):
        raise found
    return found


def _compile(schema: Any) -> Any:
    import jsonschema_rs

    patterns = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=BACKTRACK_STEPS, size_limit=REGEX_BYTES, dfa_size_limit=REGEX_CACHE_BYTES
    )
    return jsonschema_rs.validator_for(schema, retriever=_refuse, pattern_options=patterns)


def _refuse(uri: str) -> Never:
    """Instead of the library's own retriever, which reads files and calls URLs."""
    raise ValueError("only references inside the schema are resolved")


def _first_line(problem: Exception) -> str:
    text = next(iter(str(problem).splitlines()), "")
    return text if len(text) <= 300 else f"{text[:297]}..."


def first_complaint(validator: Any, value: Any) -> str:
    """What does not fit, naming the place; "" if all does."""
    for error in validator.iter_errors(value):
        path = ".".join(["payload", *(str(step) for step in error.instance_path)])
        return f"{path}: {error.message}"
    return ""
