"""Where jobs read: ``topic:orders``, ``queue:mail``, ``dlq:mail``, ``done:mail``, ``archive:FOLDER``, or
``files:FOLDER`` for files by date; as frames.

Knows: the words and the options of the data source that they stand for. Does not know: jobs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from yirangmq.core.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("topic", "queue", "dlq", "done", "archive", "files")
SOURCES = {"queue": "queue", "dlq": "dlq", "done": "archive"}
ALL = "*"


@dataclass(frozen=True, slots=True)
class Place:
    """``name`` may be several, split by commas, or a pattern; of an archive or of files by date it is a folder."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Reach:
    """How the data is reached: a server's HTTP address, or for topics the server's data folder on this machine."""

    broker: str | None = None
    path: str | None = None
    token: str | None = None

    def options(self, *, topics: bool) -> dict[str, str]:
        if topics and self.path:
            return {"path": self.path}
        if not self.broker:
            also = ", or for topics --path FOLDER" if topics else ""
            raise BadInput(f"say where the server is: --broker http://HOST:PORT{also}", field="broker")
        return {"broker": self.broker, **({"token": self.token} if self.token else {})}


def read_place(text: str, field: str = "from", kinds: tuple[str, ...] = KINDS) -> Place:
    kind, _, name = text.partition(":")
    if kind not in kinds or not name:
        raise BadInput(f"{text!r} is not one of {', '.join(f'{kind}:NAME' for kind in kinds)}", field=field)
    return Place(kind, name)


def source_options(place: Place, reach: Reach) -> dict[str, str]:
    """For ``format("yirangmq")``."""
    if place.kind == "topic":
        is_pattern = any(sign in place.name for sign in "*?[")
        which = {"subscribePattern" if is_pattern else "subscribe": place.name}
        return {**reach.options(topics=True), **which}
    which = {} if place.name == ALL else {"queue": place.name}
    return {**reach.options(topics=False), "source": SOURCES[place.kind], **which}


def read(spark: "SparkSession", place: Place, reach: Reach, **more: str) -> "DataFrame":
    """As a batch. ``more``: further options of the data source."""
    if place.kind == "archive":
        from yirangmq.pipeline.jobs.archive import read_archive

        return read_archive(spark, Path(place.name).absolute())
    if place.kind == "files":
        from yirangmq.pipeline.jobs.dayfiles import messages

        return messages(read_day_files(spark, place, **more))
    return spark.read.format("yirangmq").options(**source_options(place, reach), **more).load()


def read_day_files(spark: "SparkSession", place: Place, **more: str) -> "DataFrame":
    """A row for each record of files by date."""
    path = str(Path(place.name).absolute())
    return spark.read.format("yirangmq").options(source="files", path=path, **more).load()


def read_states(spark: "SparkSession", place: Place, reach: Reach) -> "DataFrame":
    """All messages of queues, in whatever state: those in line, those that are done and the dead letters."""
    if place.kind != "queue":
        return read(spark, place, reach)
    parts = [read(spark, place, reach, state=state) for state in ("ready", "delayed", "leased")]
    parts += [read(spark, Place(kind, place.name), reach) for kind in ("done", "dlq")]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole
