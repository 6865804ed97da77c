"""Spark data source ``yirangmq``: topics, queues and dead letters as DataFrames, in batches and streams.

Self-contained, because Spark may send it to executors without yirangmq, class by class and function by function
(``session.register(ship=True)``). Its modules import the standard library, pyspark, and late pyarrow and numpy. Of
yirangmq they import only each other, at the top and by name (``from … import Name``): a name is sent, a module is not.
Therefore they repeat what the project knows of the log's files and frames. Tests hold both copies to the same bytes
(docs/log.md).

There are two ways to the data: ``path`` reads the log's files on this machine, ``broker`` asks a server over HTTP.
Offsets are sequences of the whole log. A range is (after, last], so an offset means "everything up to here"."""
