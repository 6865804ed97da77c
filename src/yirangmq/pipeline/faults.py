"""What Spark raises, as one of our errors: the line that says what is wrong, without the stack of two languages.

Knows: how Spark's texts look. Does not know: jobs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from yirangmq.core.errors import BadInput, NotAllowed, QueueError, Retired, StoreDamaged, Unavailable

OURS = re.compile(r"(?:SourceError|Retired|Refused|BadInput): ([^\n]+)")
"""How an error of the data source, or of a step, ends up in a text of Spark's."""
CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
FAILED = "STREAM_FAILED"
ENDED = "terminated with exception: "
PYTHON = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
TRACEBACK = "Traceback (most recent call last):"
TOO_BUSY = "this machine is too busy: a Python process of Spark's did not start within ten seconds; try again"
MOST = 600


@contextmanager
def plain(field: str | None = None) -> Iterator[None]:
    """``field`` names the place where it is known."""
    try:
        yield
    except QueueError:
        raise
    except Exception as error:
        made = as_queue_error(error, field)
        if made is None:
            raise
        raise made from None


def as_queue_error(error: Exception, field: str | None = None) -> QueueError | None:
    """None: it is not Spark's."""
    text = str(error)
    ours = OURS.findall(text)
    if ours:
        return _ours(ours[-1].strip()[:MOST], field)
    if is_too_busy(error):
        return Unavailable(TOO_BUSY)
    module = type(error).__module__
    if not module.startswith(("pyspark", "py4j", "grpc")):
        return None
    words = line_of(text)
    if type(error).__name__ in ("AnalysisException", "ParseException") or is_of_the_input(text):
        return BadInput(words, field=field)
    return QueueError(f"Spark: {words}")


def is_too_busy(error: Exception) -> bool:
    """Spark waits ten seconds for a Python process that it started, and this cannot be set."""
    return "Python worker failed to connect back" in str(error)


def is_of_the_input(text: str) -> bool:
    """Spark has a name for it, and no stream was running yet."""
    return CONDITION.search(text) is not None and FAILED not in text


def _ours(words: str, field: str | None) -> QueueError:
    if "no longer kept" in words or "are gone" in words:
        return Retired(words)
    if "does not answer" in words:
        return Unavailable(words)
    if "token" in words or ("not allowed" in words and "name" not in words):
        return NotAllowed(words)
    if "checksum" in words:
        return StoreDamaged(words)
    return BadInput(words, field=field)


def words_of(text: str) -> str:
    """One line of a text of Spark's."""
    ours = OURS.findall(text)
    return ours[-1].strip()[:MOST] if ours else line_of(text)


def line_of(text: str) -> str:
    """The line that says most: one with Spark's name for what is wrong, else the last of Python's, else the first."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    for line in lines:
        if CONDITION.search(line) and FAILED not in line and not line.endswith(TRACEBACK):
            return CONDITION.sub("", line, count=1)[:MOST] if line.startswith("[") else line[:MOST]
    python = PYTHON.findall(text)
    if python:
        return ": ".join(python[-1])[:MOST]
    first = lines[0] if lines else "no words"
    return first.partition(ENDED)[2][:MOST] or first[:MOST]
