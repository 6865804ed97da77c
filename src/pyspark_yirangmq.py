"""Registers ``format("yirangmq")`` with Spark, without a register call.

Spark imports each top-level module whose name begins with ``pyspark_`` and registers its ``DefaultSource``. If one of
these imports raises, Spark skips the data sources of all packages. Therefore this module defines nothing where PySpark
is missing or older than 4.2, which the data source needs."""

try:
    from yirangmq.pipeline.source.source import YirangSource as DefaultSource
except ImportError:
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
