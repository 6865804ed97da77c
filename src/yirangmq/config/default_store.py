"""Default store of the working folder: one rule for the server and the command line.

Both keep messages in ``yirang-data/queue.db``, or in ``queue.db`` of the folder that YIRANGMQ_DATA or MQ_DATA names.
Earlier versions of a command without a server used ``./yirang.db``. Commands use that former file as long as it is the
only store there. Once ``queue.db`` exists they do not, and commands and the server report the former file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

DATA_FOLDER = "yirang-data"
STORE_FILE = "queue.db"
FORMER_FILE = "yirang.db"
"""Default store of commands in earlier versions, relative to the working folder."""
DATA_VARIABLES = ("YIRANGMQ_DATA", "MQ_DATA")
"""In order of precedence, as for the setting ``data``."""


@dataclass(frozen=True, slots=True)
class DefaultStore:
    """``file`` is the SQLite file to open; ``unused_file`` is a former default file that is not opened, or ""."""

    file: str
    unused_file: str

    @property
    def unused_text(self) -> str:
        """Note to the user about the former file."""
        return (
            f"./{self.unused_file}, the default store of earlier versions, is not used beside {self.file}; see it with "
            f"'yirangmq status --db {self.unused_file}', move it with 'yirangmq export old.jsonl --db "
            f"{self.unused_file}' and 'yirangmq import old.jsonl'"
        )


def data_folder(env: Mapping[str, str]) -> str:
    return next((env[name] for name in DATA_VARIABLES if env.get(name)), DATA_FOLDER)


def default_store(env: Mapping[str, str]) -> DefaultStore:
    """Return the default store of commands in the working folder."""
    file = f"{data_folder(env)}/{STORE_FILE}"
    if not os.access(FORMER_FILE, os.F_OK):
        return DefaultStore(file, "")
    return DefaultStore(file, FORMER_FILE) if os.access(file, os.F_OK) else DefaultStore(FORMER_FILE, "")
