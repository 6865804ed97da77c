"""The Spark data source ``yirangmq``: topics, queues and dead letters as DataFrames, batch and streaming, in and out.

Self-contained on purpose: Spark may have to send it to executors that have no yirangmq installed, class by class and
function by function (``session.register(ship=True)``). Therefore the modules here import the standard library, pyspark,
and late pyarrow and numpy; of ours only each other, at their head and by name (``from … import Name``), since a name is
sent and a module is not. What they know of the log's files and frames they know a second time; tests hold both to the
same bytes (docs/log.md).

Two ways to the data: ``path`` reads the log's files of this machine, ``broker`` asks a server over HTTP. Offsets are
sequences of the whole log; a range is (after, last], so an offset says "everything up to here"."""
