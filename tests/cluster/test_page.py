"""docs/cluster.md: its lines and its program run as they stand there; what it names exists."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.troupe import Troupe
from tests.support.etcd import EtcdCluster, at, play, program
from tests.support.pages import code_blocks
from tests.support.wait import PATIENCE, soon

pytestmark = pytest.mark.process
PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def blocks(kind: str) -> list[str]:
    return code_blocks(PAGE.read_text(), kind)


def test_cluster_page_commands_and_programs_run(etcd: EtcdCluster, tmp_path: Path) -> None:
    folders = [str(Path(program("etcdctl")).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    endpoints = ",".join(etcd.endpoints)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(folders),
        "YIRANGMQ_ETCD": f"etcd://{endpoints}",
        "ETCDCTL_ENDPOINTS": endpoints,
        "ETCDCTL_API": "3",
    }

    async def is_given() -> None:
        async with at(*etcd.endpoints) as client:

            async def there() -> bool:
                return await client.get(b"/q/jobs/c/me/%020d/k1" % 1) is not None

            await soon(there)

    with Troupe(etcd, tmp_path, "jobs", nodes=1, consumers=0):
        said = ""
        for line in [line for block in blocks("sh") for line in block.splitlines()]:
            done = subprocess.run(["bash", "-c", line], capture_output=True, env=environment, timeout=PATIENCE)
            assert done.returncode == 0, (line, done.stderr)
            said += done.stdout.decode()
            if line.endswith("my-host"):
                play(is_given())
        assert "/q/jobs/00000000000000000001/k1" in said
        assert '"queue":"jobs"' in said
        [code] = blocks("python")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=PATIENCE)
        assert done.stdout == b"1 b'one'\n2 b'two'\n", done.stderr
        example = str(PAGE.parents[1] / "examples" / "cluster_request_reply.py")
        done = subprocess.run([sys.executable, example], capture_output=True, env=environment, timeout=PATIENCE)
        assert done.stdout == b"and this one? 13\nhow long? 9\n", done.stderr
