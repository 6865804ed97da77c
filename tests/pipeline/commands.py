"""``yirangmq`` in this process, with the session that is there: exit code, what was printed, what was complained."""

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cli import Result
from yirangmq.cli.main import run

Command = Callable[..., Result]


def made(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    def call(line: str, *more: str, code: int = 0) -> Result:
        capfdbinary.readouterr()
        ended = run([*shlex.split(line), *more])
        out, err = capfdbinary.readouterr()
        result = Result(ended, out.decode(), err.decode())
        assert ended == code, result
        return result

    return call


def bury(served: Any, queue: str, *values: object, reason: str = "REJECTED") -> None:
    """Dead letters, one for each value."""
    served.publish(queue, *values)
    leased = served.ask("POST", f"/v1/queues/{queue}/lease", {"max": len(values)})["messages"]
    for one in leased:
        served.ask("POST", f"/v1/queues/{queue}/nack", {"leases": [one["lease"]["leaseId"]], "reason": reason})
