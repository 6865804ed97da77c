"""On a device with bare Python the files store needs nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wait import PATIENCE

PROGRAM = """
import sys
for name in ("msgspec", "apsw", "jsonschema_rs", "shtab"):
    sys.modules[name] = None
import yirangmq
with yirangmq.open("files:" + sys.argv[1]) as queues:
    queues.publish("mail", {"zahl": 1.5, "이랑": None})
    queues.publish("mail", bytes(range(256)))
    queues.publish_text("mail", [b'{"messageId":"m","x":{"y":[1, 2]},"payload": {"a" : 1.0e0} }'])
    first, second, third = queues.lease("mail", 3)
    assert first.value() == {"zahl": 1.5, "이랑": None}
    assert second.payload == bytes(range(256))
    assert (third.payload, third.header["x"]) == (b'{"a" : 1.0e0}', {"y": [1, 2]})
    queues.ack(first.lease_id)
    queues.nack(second.lease_id, "REJECTED", "no")
    assert list(queues.check()) == []
    print(queues.counts("mail").done, queues.counts("mail").dead, queues.counts("mail").leased)
"""


@pytest.mark.process
def test_files_store_needs_only_the_standard_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 1 1\n", "")
