"""The whole program, whose loop can be made to hang: SIGUSR1 stops its thread, until there is a file ``wake``
in its folder. Its other threads go on. ``python -m tests.cluster.hanging serve …``"""

import signal
import time
from pathlib import Path

from yirangmq.cli.main import run


def hang(*_: object) -> None:
    Path("hangs").touch()
    while not Path("wake").exists():
        time.sleep(0.05)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, hang)
    raise SystemExit(run())
