"""The log of tests/golden/log-v1, made again. ``python -m tests.stores.log.log_golden`` writes it; a byte that changes
is a break of the format, and needs another version."""

import shutil
from pathlib import Path

from tests.support.clock import NanosecondClock
from tests.support.golden_files import FOLDER
from tests.support.segment_log import SECOND, SMALL, open_log
from yirangmq.core.topics import NewRecord

GOLDEN = FOLDER / "log-v1"
EPOCH = bytes(range(16))


def make(folder: Path) -> None:
    """Two segments: one sealed, one in use."""
    clock = NanosecondClock()
    settings = SMALL._replace(segment_bytes=1024)
    with open_log(folder, settings, now_ns=clock, new_epoch=lambda: EPOCH) as log:
        log.append([NewRecord("trades", b"hello"), NewRecord("quotes", b'{"p":1}', "KRX", {"type": "tick"})])
        clock.advance(SECOND)
        log.append([NewRecord("trades", b"x" * 600)])
        clock.advance(SECOND)
        log.append([NewRecord("misc", b""), NewRecord("trades", b"\x00\xff" * 100)])


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    make(GOLDEN)
    GOLDEN.with_name("log-v1.lock").unlink()
