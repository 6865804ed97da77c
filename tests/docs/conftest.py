"""What pages take for granted: a server that was started in the folder one is in."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from yirangmq.client.connect import connect


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where ``yirangmq serve`` was started without any setting."""
    folder = tmp_path_factory.mktemp("page")
    with subprocess.Popen(
        [sys.executable, "-m", "yirangmq", "serve"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        connect(f"unix:{folder / 'yirang-data' / 'yirangmq.sock'}", retries=100).close()
        yield folder
        server.terminate()
