"""JSON Schema of messages: limits of a schema, its compilation within a time limit, and validation.

A schema is input of a client that is not trusted. Its references must stay inside the document, because a reference to
another one would make the compiler read a file or call a URL. Size, depth, patterns and the number of subschemas that
apply to one value are bounded, which bounds the time of compilation and validation. The check itself is bounded too.

The compiler has no way to read files or URLs either. It runs in a thread of its own, for up to 5 s. It releases the
GIL, so that an event loop goes on if the caller is in another thread. Compiled schemas are cached by the digest of
their text for all threads. The library is loaded when a schema is first needed (extra ``[schema]``)."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Never
from urllib.parse import unquote, urldefrag, urljoin

from yirangmq.core.errors import BadInput, MissingExtra, QuotaExceeded
from yirangmq.format.json_codec import dumps

# -- limits ------------------------------------------------------------------------------------------------------------

MOST_BYTES = 256 * 1024
"""Of a schema as JSON text. Compiling that much takes about 50 ms."""
MOST_DEPTH = 100
"""Objects and arrays inside each other; the compiler itself stops at 255."""
MOST_PATTERNS = 200
"""``pattern`` keywords and names in ``patternProperties``: each costs up to 0.2 ms and 100 KB when it is compiled."""
MOST_APPLIED = 10_000
"""Subschemas that apply to one and the same value, references followed. Twenty definitions that each refer twice to
the next one are a million."""
MOST_REFERENCES = 2000
"""In one schema: a chain of so many takes 0.15 s to compile, and the time grows with the square of its length."""
MOST_EXPANDED = 20_000
"""Subschemas that the compiler makes of embedded resources (those with an ``$id``). It makes a resource again for every
path of references by which it is reached: eight that refer to each other are 100,000 paths and 5 s, twenty do not
end."""

DRAFTS = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-04/schema",
    }
)
"""What ``$schema`` may say, with or without an empty fragment. It names the draft; nothing is loaded."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas, whatever they look like."""
BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)  # fmt: skip
"""Keywords whose values are objects of schemas, so that their members are names and not keywords."""
IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
"""Keywords whose subschemas apply to the value itself, and not to a part of it."""


class Place(NamedTuple):
    """A subschema, its JSON pointer, the base URI at which it stands, and how deep."""

    schema: Mapping[str, Any]
    pointer: str
    base: str
    depth: int


def check_limits(schema: Any, size: int, field: str, error: type[BadInput]) -> None:
    """``BadInput`` naming the pointer of a reference that leaves the document; ``error`` for the other limits.
    ``size``: bytes of the schema as JSON text."""
    if size > MOST_BYTES:
        raise error(f"has {size} bytes; a schema may have {MOST_BYTES}", field=field)
    places = []
    patterns = 0
    for place in _places(schema, field, error):
        places.append(place)
        patterns += "pattern" in place.schema
        named = place.schema.get("patternProperties")
        patterns += len(named) if isinstance(named, Mapping) else 0
        if patterns > MOST_PATTERNS:
            raise error(f"has more than {MOST_PATTERNS} patterns", field=field)
    references = _References(places)
    _check_references(references, field, error)
    _check_expanded(references, field, error)
    _check_applied(references, field, error)


def _places(schema: Any, field: str, error: type[BadInput]) -> Iterator[Place]:
    """Every object in which keywords stand."""
    is_old = isinstance(schema, Mapping) and urldefrag(str(schema.get("$schema")))[0].endswith("/draft-04/schema")
    identifier = "id" if is_old else "$id"
    waiting: list[tuple[Any, str, str, int, bool]] = [(schema, "#", "", 1, False)]
    while waiting:
        value, pointer, base, depth, are_names = waiting.pop()
        if depth > MOST_DEPTH:
            raise error(f"is nested deeper than {MOST_DEPTH} levels at {pointer[:200]}", field=field)
        if isinstance(value, list | tuple):
            waiting += [(one, f"{pointer}/{n}", base, depth + 1, False) for n, one in enumerate(value)]
            continue
        if not isinstance(value, Mapping):
            continue
        if not are_names:
            own = value.get(identifier)
            base = _joined(base, own) if isinstance(own, str) else base
            yield Place(value, pointer, base, depth)
        for name, part in value.items():
            inner = f"{pointer}/{_escaped(str(name))}"
            if are_names:
                waiting.append((part, inner, base, depth + 1, False))
            elif name not in DATA:
                waiting.append((part, inner, base, depth + 1, name in BY_NAME))


class _References:
    """Where the references of a document lead: to subschemas by their JSON pointers."""

    def __init__(self, places: list[Place]) -> None:
        self.places = {place.pointer: place for place in places}
        self._resources = {"": "#"}
        self._anchors: dict[tuple[str, str], str] = {}
        for place in places:
            resource, anchor = urldefrag(place.base)
            self._resources.setdefault(resource, place.pointer)
            names = [anchor, *(place.schema.get(name) for name in ("$anchor", "$dynamicAnchor"))]
            for name in names:
                if isinstance(name, str) and name:
                    self._anchors.setdefault((resource, name), place.pointer)

    def is_inside(self, place: Place, target: str) -> bool:
        return urldefrag(_joined(place.base, target))[0] in self._resources

    def find(self, place: Place, target: str) -> str | None:
        """The pointer of the subschema it refers to; None if there is none, or if it is true or false."""
        found = self._pointer(place, target)
        return found if found in self.places else None

    def is_boolean(self, place: Place, target: str) -> bool:
        found = self._pointer(place, target) or ""
        value: Any = self.places["#"].schema
        for part in found.split("/")[1:]:
            if isinstance(value, Mapping):
                value = value.get(part.replace("~1", "/").replace("~0", "~"))
            elif isinstance(value, list | tuple) and part.isdecimal() and str(int(part)) == part:
                value = value[int(part)] if int(part) < len(value) else None
            else:
                return False
        return isinstance(value, bool)

    def _pointer(self, place: Place, target: str) -> str | None:
        resource, fragment = urldefrag(_joined(place.base, target))
        root = self._resources.get(resource)
        if root is None or not fragment:
            return root
        if fragment.startswith("/"):
            return root + unquote(fragment)
        return self._anchors.get((resource, unquote(fragment)))


def _check_references(references: _References, field: str, error: type[BadInput]) -> None:
    count = 0
    for place in references.places.values():
        for keyword in REFERENCES:
            target = place.schema.get(keyword)
            if not isinstance(target, str):
                continue
            count += 1
            if count > MOST_REFERENCES:
                raise error(f"has more than {MOST_REFERENCES} references", field=field)
            if not references.is_inside(place, target):
                raise BadInput(
                    f"the reference at {place.pointer[:200]}/{keyword} leaves the document; only references inside "
                    "the schema are resolved: put what it refers to under $defs",
                    field=field,
                )
            if references.find(place, target) is None and not references.is_boolean(place, target):
                raise error(  # what the compiler might find there would not have been counted
                    f"the subschema that the reference at {place.pointer[:200]}/{keyword} names does not exist, or "
                    f"is data of {', '.join(sorted(DATA))}; put it under $defs",
                    field=field,
                )
        draft = place.schema.get("$schema")
        if isinstance(draft, str) and draft.removesuffix("#") not in DRAFTS:
            raise BadInput(
                f"{place.pointer[:200]}/$schema names no published draft; known are 4, 6, 7, 2019-09 and 2020-12",
                field=field,
            )


def _check_expanded(references: _References, field: str, error: type[BadInput]) -> None:
    """Walks every simple path from the document's own resource through those it refers to, until the limit."""
    sizes: dict[str, int] = {}
    edges: dict[str, set[str]] = {}
    for place in references.places.values():
        own = urldefrag(place.base)[0]
        sizes[own] = sizes.get(own, 0) + 1
        targets = [place.schema.get(keyword) for keyword in REFERENCES]
        found = {urldefrag(_joined(place.base, one))[0] for one in targets if isinstance(one, str)}
        edges.setdefault(own, set()).update(found - {own})
    if len(sizes) < 3:
        return
    expanded = 0
    waiting: list[tuple[str, ...]] = [(own,) for own in sizes]
    while waiting:
        path = waiting.pop()
        expanded += sizes.get(path[-1], 0)
        if expanded > MOST_EXPANDED:
            raise error(
                f"has resources with an $id that refer to each other by too many ways (more than {MOST_EXPANDED} "
                "subschemas when compiled); refer by JSON pointers under one $id",
                field=field,
            )
        waiting += [(*path, one) for one in edges.get(path[-1], ()) if one not in path]


def _check_applied(references: _References, field: str, error: type[BadInput]) -> None:
    known: dict[str, int] = {}
    for start in references.places:
        _applied(start, references, known)
        if known[start] > MOST_APPLIED:
            raise error(
                f"applies more than {MOST_APPLIED} subschemas to one value at {start[:200]}; "
                "let definitions refer to each other less often",
                field=field,
            )


def _applied(start: str, references: _References, known: dict[str, int]) -> None:
    """Depth first without recursion. A reference back to a subschema under way counts as nothing: the compiler does
    not follow it either."""
    waiting = [(start, False)]
    while waiting:
        pointer, is_left = waiting.pop()
        if pointer in known and not is_left:
            continue
        parts = list(_targets(references.places[pointer], references))
        if is_left:
            known[pointer] = min(MOST_APPLIED + 1, 1 + sum(known.get(part, 0) for part in parts))
            continue
        known[pointer] = 0
        waiting.append((pointer, True))
        waiting += [(part, False) for part in parts if part not in known]


def _targets(place: Place, references: _References) -> Iterator[str]:
    """Subschemas that apply to the same value as this one."""
    for keyword in IN_PLACE:
        part = place.schema.get(keyword)
        inner = f"{place.pointer}/{keyword}"
        if isinstance(part, list | tuple):
            found = [f"{inner}/{n}" for n in range(len(part))]
        elif keyword in BY_NAME and isinstance(part, Mapping):
            found = [f"{inner}/{_escaped(str(name))}" for name in part]
        else:
            found = [inner]
        yield from (one for one in found if one in references.places)
    for keyword in REFERENCES:
        target = place.schema.get(keyword)
        pointer = references.find(place, target) if isinstance(target, str) else None
        if pointer is not None:
            yield pointer


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # no URI at all
        return reference


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# -- compilation and validation ----------------------------------------------------------------------------------------

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
