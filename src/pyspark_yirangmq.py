"""Found by Spark by its name: ``format("yirangmq")`` works wherever yirangmq is installed, without a register call."""

from yirangmq.pipeline.source.source import YirangSource as DefaultSource

__all__ = ["DefaultSource"]
