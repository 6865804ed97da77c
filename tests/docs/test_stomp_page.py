"""The program of the page about STOMP runs, and every setting and frame it should name is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.stomp_server import live
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.core.access import AccessGrant
from yirangmq.protocols.stomp.codec import DELAY, GROUP, KEY
from yirangmq.protocols.stomp.commands import DURABLE_NAMES, HANDLERS, REFUSED_HEADERS

PAGE = (Path(__file__).parents[2] / "docs" / "stomp.md").read_text()


def test_stomp_page_program_runs(tmp_path: Path) -> None:
    [program] = code_blocks(PAGE, "python")
    with live(tmp_path / "d", (AccessGrant("the-token"),)) as server:
        text = program.replace("61613", str(server.port))
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        with connect(server.unix) as queues:
            assert queues.counts("mail").ready == 1


@pytest.mark.parametrize(
    "word", [*HANDLERS, *list(REFUSED_HEADERS)[:3], DURABLE_NAMES[0], DELAY, GROUP, KEY, "JMSXDeliveryCount"]
)
def test_stomp_page_names_every_frame_setting_and_header(word: str) -> None:
    assert f"`{word}`" in PAGE
