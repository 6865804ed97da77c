"""The command line as a user types it, run in this process: an exit code, what was printed, what was complained."""

import io
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.cli import BACKENDS, Cli, Killed, Published, Result
from yirangmq.cli.main import run


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, and nothing set from outside."""
    monkeypatch.chdir(tmp_path)
    for name in ("YIRANGMQ_STORE", "YIRANGMQ_DB", "YIRANGMQ_PATH", "YIRANGMQ_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``cli("publish -q mail", "{}")``: the first text is split as a shell would, the others are taken as they are."""

    def call(line: str, *more: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        code = run([*shlex.split(line), *more])
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return call


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def at(cli: Cli, backend: str) -> Cli:
    """The same, on each backend in its default place; fails unless it ends well."""

    def call(line: str, *more: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = cli(line, *more, "--backend", backend, stdin=stdin)
        assert result.code == code, result
        return result

    return call


@pytest.fixture
def published(at: Cli) -> Published:
    """Publish JSON documents; their ids."""

    def call(queue: str, *documents: str) -> list[str]:
        return [at(f"publish --json -q {queue}", document).json["messageId"] for document in documents]

    return call


@pytest.fixture
def killed(at: Cli) -> Killed:
    """Publish under these ids, take and give up for a reason."""

    def call(queue: str, *ids: str, reason: str = "REJECTED", text: str = "no") -> None:
        at(f"policy set -q {queue}", '{"retry": {"limit": 0}}')
        for id in ids:
            at(f"publish -q {queue} --id {id}", f'{{"id": "{id}"}}')
            lease = at(f"consume -q {queue} --max 1 --no-ack --json").json["lease"]["leaseId"]
            at(f"nack {lease} --reason {reason}", "--text", text)

    return call
