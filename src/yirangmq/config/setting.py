"""What one setting is, and its names: ``max_frame_bytes`` in the file, ``YIRANGMQ_MAX_FRAME_BYTES`` in the environment,
``--max-frame-bytes`` as a flag."""

from dataclasses import MISSING, Field, field
from typing import Any

from yirangmq.core.setting_types import Reader

PREFIX = "YIRANGMQ_"
OFF = "off"


def setting(default: Any, read: Reader, about: str, *, shown: str = "", secret: bool = False) -> Any:
    """A field of the table. ``shown`` is the default as people should see it."""
    return field(default=default, repr=not secret, metadata={"read": read, "about": about, "shown": shown})


def variable(setting: str) -> str:
    return PREFIX + setting.upper()


def flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def default_of(setting: "Field[Any]") -> str:
    """The default as people should see it."""
    shown = str(setting.metadata["shown"] or ("" if setting.default in (MISSING, ()) else setting.default))
    return shown.removesuffix(".0")
