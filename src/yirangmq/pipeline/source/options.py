"""Options of ``format("yirangmq")`` with their checks, and the columns of each source with their Arrow types.

The table holds name, default, use and meaning of every option; docs/spark-options.md is generated from it. An unknown
option is refused with the nearest known name."""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.pipeline.source.errors import SourceError

if TYPE_CHECKING:
    import pyarrow


# -- options -----------------------------------------------------------------------------------------------------------

PER_TRIGGER_ROWS = 100_000
PER_TRIGGER_BYTES = 64 << 20
TOKEN_VARIABLE = "YIRANGMQ_TOKEN"
SOURCES = ("topic", "queue", "dlq", "archive", "files")
USES = {"r": "batch reads", "s": "streams", "w": "writes"}
SPAN = re.compile(r"([0-9]{1,12}) ?(ms|s|m|h)?")
SPAN_MS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
GLOB = re.compile(r"[a-zA-Z0-9._*?+-]{1,200}")
NAME = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}")
STATES = ("draft", "delayed", "held", "ready", "claimed", "leased", "dead", "parked", "done")


class Option(NamedTuple):
    """Option of the data source.

    ``where`` lists its uses: r in batch reads, s in streams, w in writes. ``kind`` selects the check of its value, and
    ``allows`` holds the values or the minimum for that check."""

    name: str
    default: str | None
    where: str
    about: str
    kind: str = "text"
    allows: tuple[str, ...] = ()
    same_as: tuple[str, ...] = ()


OPTIONS: tuple[Option, ...] = (
    Option("broker", None, "rsw", "the server's HTTP address, such as `http://127.0.0.1:8080`"),
    Option("path", None, "rs", "instead of `broker`: for topics the server's data folder on this machine, or the "
           "folder of its log; for files by date their folder"),
    Option("token", None, "rsw", f"the server's token; default: `{TOKEN_VARIABLE}` in the driver's environment"),
    Option("caFile", None, "rsw", "file with the certificates to trust, for an `https` address; read on the driver"),
    Option("timeoutSec", "60", "rsw", "seconds for which requests to a server that does not answer are retried",
           "whole", ("1",)),
    Option("source", None, "rs", "what to read; default: `topic`, or `queue` if the option `queue` is set",
           "choice", SOURCES),
    Option("subscribe", None, "rs", "topics to read, separated by commas", "names", (), ("topic", "topics")),
    Option("subscribePattern", None, "rs", "topics to read, as patterns separated by commas: `*` is any characters, "
           "`?` one character, `+` one level (no dot)", "globs"),
    Option("queue", None, "rs", "queues to read, separated by commas; default: all", "names", (), ("queues",)),
    Option("state", "ready", "r", "of a queue: messages in this state, in several states separated by commas, or `all`",
           "states"),
    Option("days", None, "r", "of files by date: only these days (UTC), separated by commas; default: all", "names"),
    Option("filter", None, "r", "of a queue, its dead letters or its archive: only messages that match this filter"),
    Option("startingOffsets", None, "rs", "`earliest`, `latest`, `{\"global_seq\": N}` or `{\"TOPIC\": N}`: the first "
           "records to read; default `earliest` in a batch, `latest` in a stream", "offsets"),
    Option("startingTimestamp", None, "rs", "read records from this time on: milliseconds since 1970, or a time in ISO "
           "8601", "instant"),
    Option("endingOffsets", "latest", "r", "`latest`, `{\"global_seq\": N}` or `{\"TOPIC\": N}`: the last records to "
           "read", "offsets"),
    Option("endingTimestamp", None, "r", "read records before this time", "instant"),
    Option("maxOffsetsPerTrigger", str(PER_TRIGGER_ROWS), "s", "maximum records of the log in one micro-batch", "whole",
           ("1",), ("maxRecordsPerTrigger",)),
    Option("maxBytesPerTrigger", str(PER_TRIGGER_BYTES), "s", "approximate maximum bytes in one micro-batch", "whole",
           ("1",)),
    Option("minOffsetsPerTrigger", "0", "s", "minimum records of a micro-batch; it waits for them", "whole"),
    Option("maxTriggerDelay", "15s", "s", "longest wait for `minOffsetsPerTrigger`: milliseconds, or a unit (`ms`, "
           "`s`, `m`)", "span"),
    Option("minPartitions", None, "rs", "minimum number of tasks for a range; default: the driver's cores, and one "
           "for less than a megabyte", "whole", ("1",)),
    Option("maxRecordsPerPartition", "500000", "rs", "maximum records of one task", "whole", ("1",)),
    Option("failOnDataLoss", "true", "rs", "fail if records were removed before they were read; `false`: log how many, "
           "and continue", "flag"),
    Option("includeHeaders", "true", "rs", "include the column `headers`", "flag"),
    Option("columns", None, "rs", "only these columns, separated by commas; the others are not produced", "names"),
    Option("groupId", None, "s", "durable name at the server: it retains records until this query has committed them"),
    Option("verify", "true", "rs", "compare each record with its checksum", "flag"),
    Option("pushFilters", None, "r", "evaluate Spark filters in the source; default: on in sessions made by yirangmq",
           "flag"),
    Option("topic", None, "w", "the topic to write to", "name"),
    Option("queue", None, "w", "the queue to write to", "name"),
    Option("publishId", None, "w", "name of a batch write: a second write with the same name stores nothing",
           "name"),
    Option("onBadRow", "fail", "w", "for a row that cannot be written: `fail` refuses the batch and names the row, "
           "`dlq` makes the row a dead letter of its queue, with the reason", "choice", ("fail", "dlq")),
    Option("badRowQueue", "bad-rows", "w", "with `onBadRow=dlq`: the queue of the dead letters for rows that name no "
           "queue or topic", "name"),
    Option("valueFormat", "auto", "w", "how queues store values: `json`, `bytes`, or `auto`: as JSON if a string "
           "column contains JSON", "choice", ("auto", "json", "bytes")),
    Option("ignoreUnknownColumns", "false", "w", "ignore columns that the sink does not know", "flag"),
)  # fmt: skip
SPARKS_OWN = frozenset({"checkpointlocation", "mode", "__planner", "outputmode", "queryname"})
"""Options that Spark itself adds."""


class Options:
    """Options that were given, checked, under their proper names, with defaults.

    ``where`` is one of ``USES``, or several if Spark has not yet decided between a batch and a stream."""

    def __init__(self, given: Mapping[str, str], where: str) -> None:
        known = _known(where)
        self._defaults = {option.name: option.default for option in known.values()}
        self._values: dict[str, str] = {}
        for name, value in dict(given).items():
            lowered = name.lower()
            if lowered in SPARKS_OWN:
                continue
            option = known.get(lowered)
            if option is None:
                raise SourceError(_unknown(name, known, where))
            if option.name in self._values:
                raise SourceError(f"the option {option.name} is given twice, also as {name}")
            self._values[option.name] = check(option, str(value))
        if "token" in self._defaults and os.environ.get(TOKEN_VARIABLE):
            self._values.setdefault("token", os.environ[TOKEN_VARIABLE])  # executors may have another environment
        if "caFile" in self._values:
            self._values["caFile"] = _certificates(self._values["caFile"])

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name, self._defaults.get(name))

    def needed(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise SourceError(f"the option {name} is needed")
        return value

    def whole(self, name: str) -> int:
        return int(self.needed(name))

    def flag(self, name: str) -> bool:
        return (self.text(name) or "").lower() == "true"

    def names(self, name: str) -> tuple[str, ...]:
        return _parts(self.text(name) or "")

    def milliseconds(self, name: str) -> int:
        return _span_ms(name, self.needed(name))

    def instant_ms(self, name: str) -> int:
        return _instant_ms(name, self.needed(name))

    def offsets(self, name: str) -> str | dict[str, int]:
        """Return the word ``earliest`` or ``latest``, or numbers by name."""
        return _offsets(name, self.text(name) or "")

    @property
    def source(self) -> str:
        if "source" in self._values:
            return self._values["source"]
        return "queue" if "queue" in self._values and "subscribe" not in self._values else "topic"


def check(option: Option, value: str) -> str:
    """Return the value if it is valid, else raise ``SourceError``."""
    name, allows = option.name, option.allows
    if option.kind == "whole":
        least = int(allows[0]) if allows else 0
        if not (value.isascii() and value.isdecimal() and len(value) < 19 and int(value) >= least):
            raise SourceError(f"the option {name} must be a whole number from {least}, not {value!r}")
    elif option.kind == "flag" and value.lower() not in ("true", "false"):
        raise SourceError(f"the option {name} must be true or false, not {value!r}")
    elif option.kind == "choice" and value not in allows:
        raise SourceError(f"the option {name} must be one of {', '.join(allows)}, not {value!r}{_near(value, allows)}")
    elif option.kind == "states":
        for part in _parts(value) or ("",):
            if part not in (*STATES, "all"):
                raise SourceError(f"state: there is no state {part!r}{_near(part, STATES)}")
    elif option.kind in CHECKS:
        CHECKS[option.kind](name, value)
    return value


def _check_names(name: str, value: str) -> None:
    if not _parts(value):
        raise SourceError(f"the option {name} is empty")
    for part in _parts(value) if name in ("subscribe", "queue") else ():
        if re.search(r"[*?+]", part):
            raise SourceError(f"{name}: {part!r} is a pattern; for topics there is the option subscribePattern")
        _check_name(name, part)


def _check_name(name: str, value: str) -> None:
    if not NAME.fullmatch(value):
        raise SourceError(
            f"{name}: {value[:60]!r} is not allowed; use 1 to 200 of letters, digits, '.', '-', '_', not starting with "
            "'.'"
        )


def _check_globs(name: str, value: str) -> None:
    for part in _parts(value) or ("",):
        if not GLOB.fullmatch(part):
            raise SourceError(f"{name}: {part[:60]!r} is not a pattern; use '*', '?', '+' and the characters of a name")


def _span_ms(name: str, value: str) -> int:
    found = SPAN.fullmatch(value.strip())
    if not found:
        raise SourceError(f"the option {name} must be milliseconds, or such as 15s or 2m, not {value!r}")
    return int(found[1]) * SPAN_MS[found[2]]


def _instant_ms(name: str, value: str) -> int:
    if value.isascii() and value.isdecimal() and len(value) < 15:
        return int(value)
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise SourceError(
            f"the option {name} must be milliseconds since 1970, or such as 2026-01-13T09:21:00Z, not {value!r}"
        ) from None
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def _offsets(name: str, given: str) -> str | dict[str, int]:
    given = given.strip()
    if given in ("", "earliest", "latest"):
        return given
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if isinstance(found, dict):
        # Other feeds have several partitions per topic. Ours have one, so {"TOPIC": {"0": N}} is accepted too.
        plain = {key: value["0"] if isinstance(value, dict) and set(value) == {"0"} else value
                 for key, value in found.items()}  # fmt: skip
        if plain and all(type(value) is int and value >= 0 for value in plain.values()):
            if "global_seq" in plain and len(plain) > 1:
                raise SourceError(f"{name}: give global_seq or numbers by topic, not both")
            return plain
    raise SourceError(f'{name} must be earliest, latest, {{"global_seq": N}} or {{"TOPIC": N}}, not {given!r}')


CHECKS = {
    "names": _check_names,
    "name": _check_name,
    "globs": _check_globs,
    "span": _span_ms,
    "instant": _instant_ms,
    "offsets": _offsets,
}


def _parts(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _known(where: str) -> dict[str, Option]:
    """Return the options of this use by every spelling in lower case. A proper name takes precedence over an alias."""
    here = [option for option in OPTIONS if set(option.where) & set(where)]
    found = {option.name.lower(): option for option in here}
    for option in here:
        for other in option.same_as:
            found.setdefault(other.lower(), option)
    return found


def _unknown(name: str, known: Mapping[str, Option], where: str) -> str:
    elsewhere = _known("rsw").get(name.lower())
    if elsewhere is not None:
        uses = " and ".join(USES[letter] for letter in elsewhere.where)
        here = " or ".join(USES[letter] for letter in where)
        return f"the option {elsewhere.name} is for {uses}, not for {here}"
    close = get_close_matches(name.lower(), known, 1, 0.6)
    hint = f"; did you mean {known[close[0]].name}?" if close else ""
    return f"there is no option {name!r}{hint} (docs/spark-options.md lists them all)"


def _near(word: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(word, known, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _certificates(path: str) -> str:
    if path.startswith("-----BEGIN"):
        return path
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"caFile: {path} cannot be read: {error}") from None


# -- columns -----------------------------------------------------------------------------------------------------------

MAP = "map<string,string>"
TOPIC_COLUMNS = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "global_seq": "bigint",
    "timestamp": "timestamp",
    "headers": MAP,
}
"""Columns of a topic, as jobs for other feeds expect them; ``partition`` is always 0."""
QUEUE_COLUMNS = {
    "message_id": "string",
    "queue": "string",
    "value": "binary",
    "type": "string",
    "status": "string",
    "priority": "bigint",
    "attempt": "int",
    "enqueued_at": "timestamp",
    "changed_at": "timestamp",
    "due_at": "timestamp",
    "worker": "string",
    "failure_reason": "string",
    "failure_message": "string",
    "failed_at": "timestamp",
    "seq": "bigint",
    "headers": MAP,
}
FILES_COLUMNS = QUEUE_COLUMNS | {
    "record": "string",
    "delivery": "string",
    "leased_at": "timestamp",
    "sha256": "string",
    "position": "bigint",
}
"""Columns of files by date, where each record is a row; ``position`` gives their order."""
COLUMNS = {"topic": TOPIC_COLUMNS, "files": FILES_COLUMNS}


def columns_of(options: Options) -> dict[str, str]:
    """Return the selected columns: name to Spark type."""
    columns = dict(COLUMNS.get(options.source, QUEUE_COLUMNS))
    wanted = options.names("columns")
    for name in wanted:
        if name not in columns:
            close = get_close_matches(name, columns, 1, 0.6)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(columns)}"
            raise SourceError(f"columns: there is no column {name!r}{hint}")
    if not options.flag("includeHeaders"):
        if "headers" in wanted:
            raise SourceError("columns contains headers, but includeHeaders is false; remove one of them")
        del columns["headers"]
    return {name: columns[name] for name in wanted} if wanted else columns


def arrow_type(name: str) -> "pyarrow.DataType":
    import pyarrow as pa

    return {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        MAP: pa.map_(pa.string(), pa.string()),
    }[name]


def arrow_schema(columns: Mapping[str, str]) -> "pyarrow.Schema":
    import pyarrow as pa

    return pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
