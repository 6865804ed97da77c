"""JSON Schemas that reach for files and hosts, and a schema library that takes long."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

SECRET = "secret-token-of-the-server"


class Outside:
    """What a reference could reach: a file with a secret, and a port that counts who connects."""

    def __init__(self, folder: Path) -> None:
        file = folder / "conf.json"
        file.write_text(json.dumps({"token": SECRET}))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self.targets = (
            f"file://{file}#/token",
            f"file://{file}",
            f"FILE://{file}#/token",
            str(file),
            f"http://127.0.0.1:{port}/schema",
            f"http://127.0.0.1:{port}/schema#/$defs/a",
            f"//127.0.0.1:{port}/schema",
            "other.json",
            "../conf.json#/token",
            "?query",
            "urn:example:other",
            "json-schema:///other",
            "https://json-schema.org/draft/2020-12/schema",
        )

    @property
    def was_called(self) -> bool:
        try:
            self._listener.accept()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._listener.close()


class SlowLibrary:
    """Stands for a schema that the library needs long for: it waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = jsonschema_rs.validator_for
        self.threads: list[threading.Thread] = []
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        monkeypatch.setattr(jsonschema_rs, "validator_for", self)

    def __call__(self, schema: Any, **options: Any) -> Any:
        self.threads.append(threading.current_thread())
        self.begun.release()
        self.go_on.wait()
        return self._real(schema, **options)

    def end(self) -> None:
        self.go_on.set()
        for thread in self.threads:
            thread.join()
