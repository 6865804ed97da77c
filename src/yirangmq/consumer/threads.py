"""Threads that do not die unheard: a fault in one is told, and ends the run."""

import threading
from collections.abc import Callable

Fail = Callable[[BaseException], None]
"""Called with an error that makes going on senseless."""


def thread(work: Callable[[], None], name: str, fail: Fail) -> threading.Thread:
    """Not yet started. It does not keep the process from ending."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            fail(error)

    return threading.Thread(target=run, name=f"yirangmq-{name}", daemon=True)
