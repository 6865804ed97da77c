"""Entry point of ``format("yirangmq")``: the data source class, its readers and its writers."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from yirangmq.pipeline.source.checkpoints import claim
from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.journal import DayFilesReader, PushingDayFilesReader
from yirangmq.pipeline.source.options import Options, columns_of
from yirangmq.pipeline.source.queues import PushingQueueReader, QueueReader
from yirangmq.pipeline.source.sink import BatchWriter, StreamWriter
from yirangmq.pipeline.source.topics import PushingTopicReader, TopicReader, TopicStream

READERS: dict[str, tuple[type[DataSourceReader], type[DataSourceReader]]] = {
    "topic": (TopicReader, PushingTopicReader),
    "queue": (QueueReader, PushingQueueReader),
    "dlq": (QueueReader, PushingQueueReader),
    "archive": (QueueReader, PushingQueueReader),
    "files": (DayFilesReader, PushingDayFilesReader),
}
"""Batch readers of each of ``options.SOURCES``: without and with filter pushdown."""


class YirangSource(DataSource):
    """Spark data source ``yirangmq``.

    Filter pushdown is off by default here. Spark refuses every read of a source that accepts filters while its own
    setting for pushdown is off, which is its default."""

    pushes = False

    @classmethod
    def name(cls) -> str:
        return "yirangmq"

    def schema(self) -> str:
        """Return the columns. Spark calls this before it decides between a batch and a stream."""
        columns = columns_of(Options(self.options, "rs"))
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options(self.options, "r")
        _check_schema(schema, options)
        pushes = options.flag("pushFilters") if "pushFilters" in options else self.pushes
        plain, pushing = READERS[options.source]
        return (pushing if pushes else plain)(options)  # type: ignore[call-arg]

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = Options(self.options, "s")
        _check_schema(schema, options)
        return TopicStream(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(Options(self.options, "w"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        made = StreamWriter(Options(self.options, "w"), schema, overwrite)
        claim(self.options.get("checkpointlocation"))
        return made


class PushingSource(YirangSource):
    """Data source with filter pushdown on, for sessions that allow it in their settings (``session.register``)."""

    pushes = True


def _check_schema(schema: StructType, options: Options) -> None:
    """Check that a schema given by the user equals the actual one. The option columns selects a part of it."""
    wanted = {field.name: field.dataType.simpleString() for field in schema.fields}
    there = columns_of(options)
    if wanted != there:
        raise SourceError(
            f"the schema is fixed: {there}, not {wanted}; choose with the option columns, or cast after it"
        )
