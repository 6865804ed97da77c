"""Spark's errors as errors of yirangmq, and the log file for the output of Spark's Java process.

An error is reduced to the line that names the fault, without the stacks of two languages.

The Java process keeps the file descriptors that it was started with. They point to the log file, so that its output
does not mix with a command's lines. Notices of the data source are in that file too, and are read from it."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yirangmq.core.errors import BadInput, NotAllowed, QueueError, Retired, StoreDamaged, Unavailable

# -- errors ------------------------------------------------------------------------------------------------------------

OURS = re.compile(r"(?:SourceError|Retired|Refused|BadInput): ([^\n]+)")
"""Pattern of an error of the data source, or of a step, inside a text of Spark's."""
CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
FAILED = "STREAM_FAILED"
ENDED = "terminated with exception: "
PYTHON = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
TRACEBACK = "Traceback (most recent call last):"
TOO_BUSY = "this machine is too busy: a Python process of Spark's did not start within ten seconds; try again"
MAX_LENGTH = 600


@contextmanager
def translated_errors(field: str | None = None) -> Iterator[None]:
    """Raise Spark's errors as errors of yirangmq; ``field`` names the place of the error if it is known."""
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
    """Return Spark's error as an error of yirangmq, or None if the error is not Spark's."""
    text = str(error)
    ours = OURS.findall(text)
    if ours:
        return _ours(ours[-1].strip()[:MAX_LENGTH], field)
    if is_too_busy(error):
        return Unavailable(TOO_BUSY)
    module = type(error).__module__
    if not module.startswith(("pyspark", "py4j", "grpc")):
        return None
    words = key_line(text)
    if type(error).__name__ in ("AnalysisException", "ParseException") or is_input_error(text):
        return BadInput(words, field=field)
    return QueueError(f"Spark: {words}")


def is_too_busy(error: Exception) -> bool:
    """Return whether a Python process did not start in time. Spark waits ten seconds for it; that is not
    configurable."""
    return "Python worker failed to connect back" in str(error)


def is_input_error(text: str) -> bool:
    """Return whether the input is at fault: Spark has a condition name for the error, and no stream was running yet."""
    return CONDITION.search(text) is not None and FAILED not in text


def _ours(words: str, field: str | None) -> QueueError:
    if "no longer kept" in words or "were removed" in words:
        return Retired(words)
    if "does not answer" in words:
        return Unavailable(words)
    if "token" in words or ("not allowed" in words and "name" not in words):
        return NotAllowed(words)
    if "checksum" in words:
        return StoreDamaged(words)
    return BadInput(words, field=field)


def one_line(text: str) -> str:
    """Reduce a text of Spark's to one line."""
    ours = OURS.findall(text)
    return ours[-1].strip()[:MAX_LENGTH] if ours else key_line(text)


def key_line(text: str) -> str:
    """Return the most informative line.

    That is a line with Spark's name of the condition, else the last error line of Python's, else the first line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    for line in lines:
        if CONDITION.search(line) and FAILED not in line and not line.endswith(TRACEBACK):
            return CONDITION.sub("", line, count=1)[:MAX_LENGTH] if line.startswith("[") else line[:MAX_LENGTH]
    python = PYTHON.findall(text)
    if python:
        return ": ".join(python[-1])[:MAX_LENGTH]
    first = lines[0] if lines else "no words"
    return first.partition(ENDED)[2][:MAX_LENGTH] or first[:MAX_LENGTH]


# -- output of the Java process ----------------------------------------------------------------------------------------

NOTE_PREFIX = b"yirangmq: "
"""Prefix of the lines that the data source prints (``source.errors.say``)."""
TAIL = 4000


class SparkLog:
    """Log file of Spark's Java process, and the notices in it.

    Use ``capture`` while the Java process is started: the process keeps the descriptors it inherits for its whole
    life."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    @contextmanager
    def capture(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [(number, os.dup(number)) for number in (1, 2)]
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._read = 0
        try:
            for number, _ in kept:
                os.dup2(file, number)
            yield
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
            os.close(file)

    def notes(self) -> list[str]:
        """Return the notices of the data source since the previous call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [
            line.removeprefix(NOTE_PREFIX).decode("utf-8", "replace")
            for line in whole.splitlines()
            if line.startswith(NOTE_PREFIX)
        ]

    def tail(self) -> str:
        """Return the last ``TAIL`` bytes as text, for an error report."""
        try:
            return self.path.read_bytes()[-TAIL:].decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
