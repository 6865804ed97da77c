"""The log of topics: segments of records, appended and never changed.

``SegmentLog`` appends and reads; ``SegmentView`` reads a log that another process writes. Both are loaded on first
access."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yirangmq.stores.log.log import LogSettings, SegmentLog
    from yirangmq.stores.log.readonly import SegmentView

__all__ = [
    "LogSettings",
    "SegmentLog",
    "SegmentView",
]
_LATE = {
    "LogSettings": "yirangmq.stores.log.log",
    "SegmentLog": "yirangmq.stores.log.log",
    "SegmentView": "yirangmq.stores.log.readonly",
}

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name]), name)
