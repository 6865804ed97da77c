"""Spark data source ``yirangmq``: topics, queues and dead letters as DataFrames, in batches and streams.

The package is self-contained, because Spark may send it to executors without yirangmq, class by class and function by
function (``session.register(ship=True)``). Its modules import the standard library and pyspark at the top, and pyarrow
and numpy inside functions. Of yirangmq they import only each other, at the top and by name (``from … import Name``): a
name is sent, a module is not. Therefore they repeat the definitions of the log's files and frames. Tests hold both
copies to the same bytes (docs/log.md).

There are two ways to the data: ``path`` reads the log's files on this machine, ``broker`` reads from a server over
HTTP. Offsets are sequences of the whole log. A range is (after, last], so an offset means "everything up to this
sequence"."""
