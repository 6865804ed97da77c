"""JSON Schema of messages: limits of a schema, its compilation within a time limit, and validation.

A schema is untrusted input. Its references must stay inside the document, because a reference to another document would
make the compiler read a file or call a URL. Size, depth, patterns and the number of subschemas that apply to one value
are bounded, which bounds the time of compilation and validation. The check of the limits is bounded too.

The compiler cannot read files or URLs either. It runs in a separate thread for up to 5 s and releases the GIL, so that
an event loop in another thread keeps running. Compiled schemas are cached by the digest of their text for all threads.
The library is loaded when a schema is first needed (extra ``[schema]``)."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Never
from urllib.parse import unquote, urldefrag, urljoin

from yirangmq.core.errors import BadInput, MissingExtra, QuotaExceeded
from yirangmq.format.json_codec import dumps

# -- limits ------------------------------------------------------------------------------------------------------------

MAX_BYTES = 256 * 1024
"""Maximum bytes of a schema as JSON text. Compiling that much takes about 50 ms."""
MAX_DEPTH = 100
"""Maximum nesting of objects and arrays. The compiler itself stops at 255."""
MAX_PATTERNS = 200
"""Maximum number of ``pattern`` keywords and names in ``patternProperties``. Compiling one costs up to 0.2 ms and
100 KB."""
MAX_APPLIED = 10_000
"""Maximum number of subschemas that apply to one value, references included. Twenty definitions that each refer twice
to the next one are a million."""
MAX_REFERENCES = 2000
"""Maximum number of references in one schema. A chain of 2,000 takes 0.15 s to compile, and the time grows with the
square of its length."""
MAX_EXPANDED = 20_000
"""Maximum number of subschemas that the compiler builds from embedded resources (those with an ``$id``).

It builds a resource again for every path of references that reaches it. Eight resources that refer to each other have
100,000 paths and take 5 s; with twenty the compilation does not end."""

DRAFTS = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-04/schema",
    }
)
"""Accepted values of ``$schema``, with or without an empty fragment. The value names the draft; nothing is loaded."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords with values that are data and not schemas, even if they look like schemas."""
BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)  # fmt: skip
"""Keywords with an object of schemas as value. The members of the object are names and not keywords."""
IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
"""In-place applicators: keywords with subschemas that apply to the value itself and not to a part of it."""


class Subschema(NamedTuple):
    """A subschema with its JSON pointer, its base URI and its depth."""

    schema: Mapping[str, Any]
    pointer: str
    base: str
    depth: int


def check_limits(schema: Any, size: int, field: str, error: type[BadInput]) -> None:
    """Check the limits of a schema. ``size`` is the bytes of the schema as JSON text.

    Raise ``BadInput`` with the pointer of a reference that leaves the document, and ``error`` for any other limit."""
    if size > MAX_BYTES:
        raise error(f"has {size} bytes; a schema may have {MAX_BYTES}", field=field)
    places = []
    patterns = 0
    for place in _subschemas(schema, field, error):
        places.append(place)
        patterns += "pattern" in place.schema
        named = place.schema.get("patternProperties")
        patterns += len(named) if isinstance(named, Mapping) else 0
        if patterns > MAX_PATTERNS:
            raise error(f"has more than {MAX_PATTERNS} patterns", field=field)
    references = _References(places)
    _check_references(references, field, error)
    _check_expanded(references, field, error)
    _check_applied(references, field, error)


def _subschemas(schema: Any, field: str, error: type[BadInput]) -> Iterator[Subschema]:
    """Yield every object that has keywords as members."""
    is_old = isinstance(schema, Mapping) and urldefrag(str(schema.get("$schema")))[0].endswith("/draft-04/schema")
    identifier = "id" if is_old else "$id"
    waiting: list[tuple[Any, str, str, int, bool]] = [(schema, "#", "", 1, False)]
    while waiting:
        value, pointer, base, depth, are_names = waiting.pop()
        if depth > MAX_DEPTH:
            raise error(f"is nested deeper than {MAX_DEPTH} levels at {pointer[:200]}", field=field)
        if isinstance(value, list | tuple):
            waiting += [(one, f"{pointer}/{n}", base, depth + 1, False) for n, one in enumerate(value)]
            continue
        if not isinstance(value, Mapping):
            continue
        if not are_names:
            own = value.get(identifier)
            base = _joined(base, own) if isinstance(own, str) else base
            yield Subschema(value, pointer, base, depth)
        for name, part in value.items():
            inner = f"{pointer}/{_escaped(str(name))}"
            if are_names:
                waiting.append((part, inner, base, depth + 1, False))
            elif name not in DATA:
                waiting.append((part, inner, base, depth + 1, name in BY_NAME))


class _References:
    """Index that resolves the references of a document to the JSON pointers of its subschemas."""

    def __init__(self, places: list[Subschema]) -> None:
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

    def is_inside(self, place: Subschema, target: str) -> bool:
        return urldefrag(_joined(place.base, target))[0] in self._resources

    def find(self, place: Subschema, target: str) -> str | None:
        """Return the pointer of the referenced subschema; None if it does not exist, or is true or false."""
        found = self._pointer(place, target)
        return found if found in self.places else None

    def is_boolean(self, place: Subschema, target: str) -> bool:
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

    def _pointer(self, place: Subschema, target: str) -> str | None:
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
            if count > MAX_REFERENCES:
                raise error(f"has more than {MAX_REFERENCES} references", field=field)
            if not references.is_inside(place, target):
                raise BadInput(
                    f"the reference at {place.pointer[:200]}/{keyword} leaves the document; only references inside "
                    "the schema are resolved: put what it refers to under $defs",
                    field=field,
                )
            if references.find(place, target) is None and not references.is_boolean(place, target):
                raise error(  # the limits do not count what the compiler would find there
                    f"the subschema that the reference at {place.pointer[:200]}/{keyword} names does not exist, or "
                    f"is data of {', '.join(sorted(DATA))}; put it under $defs",
                    field=field,
                )
        draft = place.schema.get("$schema")
        if isinstance(draft, str) and draft.removesuffix("#") not in DRAFTS:
            raise BadInput(
                f"{place.pointer[:200]}/$schema is not a published draft; known are 4, 6, 7, 2019-09 and 2020-12",
                field=field,
            )


def _check_expanded(references: _References, field: str, error: type[BadInput]) -> None:
    """Walk every simple path of references from each resource, and fail at ``MAX_EXPANDED`` subschemas."""
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
        if expanded > MAX_EXPANDED:
            raise error(
                f"has resources with an $id that refer to each other by too many ways (more than {MAX_EXPANDED} "
                "subschemas when compiled); refer by JSON pointers under one $id",
                field=field,
            )
        waiting += [(*path, one) for one in edges.get(path[-1], ()) if one not in path]


def _check_applied(references: _References, field: str, error: type[BadInput]) -> None:
    known: dict[str, int] = {}
    for start in references.places:
        _applied(start, references, known)
        if known[start] > MAX_APPLIED:
            raise error(
                f"applies more than {MAX_APPLIED} subschemas to one value at {start[:200]}; "
                "reduce references between definitions",
                field=field,
            )


def _applied(start: str, references: _References, known: dict[str, int]) -> None:
    """Count the subschemas that apply together, depth first without recursion.

    A reference back to a subschema that is still being counted adds 0: the compiler does not follow it either."""
    waiting = [(start, False)]
    while waiting:
        pointer, is_left = waiting.pop()
        if pointer in known and not is_left:
            continue
        parts = list(_targets(references.places[pointer], references))
        if is_left:
            known[pointer] = min(MAX_APPLIED + 1, 1 + sum(known.get(part, 0) for part in parts))
            continue
        known[pointer] = 0
        waiting.append((pointer, True))
        waiting += [(part, False) for part in parts if part not in known]


def _targets(place: Subschema, references: _References) -> Iterator[str]:
    """Yield the pointers of subschemas that apply to the same value as this one."""
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
    except ValueError:  # not a URI
        return reference


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# -- compilation and validation ----------------------------------------------------------------------------------------

COMPILE_SECONDS = 5.0
"""Time limit of one compilation. Within the limits it takes about 50 ms. A thread cannot be killed: after the time
limit the caller gets an error while the compilation runs to its end."""
MAX_COMPILING = 4
"""Maximum number of concurrent compilations, including those past the time limit. More are rejected."""
MAX_CACHED = 100
REGEX_BYTES = 100 * 1024
"""Maximum bytes of one compiled pattern."""
REGEX_CACHE_BYTES = 256 * 1024
BACKTRACK_STEPS = 100_000
"""Maximum backtracking steps per match, about 4 ms. After them the value is invalid. Patterns without lookaround and
backreferences are matched in linear time."""


def chosen_schema(schemas: Mapping[str, Mapping[str, Any]], header: Mapping[str, Any]) -> Any:
    """Return the schema for a header's type and version from ``{type: {version: schema}}``; None if there is none."""
    kind = header.get("type")
    versions = schemas.get(str(kind)) if kind is not None else None
    if versions is None:
        return None
    version = str(header.get("version", "*"))
    return versions.get(version if version in versions else "*")


class _Cache:
    """LRU cache of compiled schemas by the digest of their text. Thread-safe."""

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
            if len(self._known) > MAX_CACHED:
                self._known.popitem(last=False)


_cache = _Cache()
_compiling = threading.BoundedSemaphore(MAX_COMPILING)


def compiled(schema: Any, field: str, error: type[BadInput]) -> Any:
    """Compile a schema to a validator, or return the cached one.

    Raise ``BadInput`` for a reference that leaves the document. Raise ``error`` with the field for a document that is
    not a JSON Schema or exceeds the limits."""
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
        import jsonschema_rs  # noqa: F401  (loaded here, so that loading does not count towards the time limit)
    except ImportError:
        raise MissingExtra("schemas need the extra: pip install 'yirangmq[schema]'") from None
    if not _compiling.acquire(blocking=False):
        raise QuotaExceeded(f"{MAX_COMPILING} schemas are being compiled; try again later", field=field)
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
    """Replace the library's default retriever, which reads files and calls URLs."""
    raise ValueError("only references inside the schema are resolved")


def _first_line(problem: Exception) -> str:
    text = next(iter(str(problem).splitlines()), "")
    return text if len(text) <= 300 else f"{text[:297]}..."


def first_problem(validator: Any, value: Any) -> str:
    """Return the first validation error with the path of the value; "" if the value is valid."""
    for error in validator.iter_errors(value):
        path = ".".join(["payload", *(str(step) for step in error.instance_path)])
        return f"{path}: {error.message}"
    return ""
