"""Python loads this module at its start if its folder is in ``PYTHONPATH``. Imports of what extras and tests add then
fail, as on a base install."""

import sys
from typing import Any

EXTRAS: tuple[str, ...] = (
    "google", "grpc", "isal", "jsonschema_rs", "numpy", "opentelemetry", "pandas", "pyarrow", "pyspark", "requests",
    "stomp", "stompman", "uvloop", "yaml",
)  # fmt: skip
modules: dict[str, Any] = sys.modules
modules.update(dict.fromkeys(EXTRAS))
