"""File locks by ``flock``: a single attempt, and attempts within a time limit.

The kernel releases a lock when its last descriptor is closed, also when the process dies. No call blocks in the kernel:
``lock_within`` polls, so that it ends in time. Each call looks up ``fcntl.flock`` again, because the fault injector
replaces it there. A lock held elsewhere is not an error; other failures pass as ``OSError``."""

import fcntl
import random
import time

from yirangmq.core.backoff import Backoff

POLL = Backoff(first=0.01, limit=0.01)
"""Delay in seconds between two attempts. A constant short delay: the lock is rarely held, and only briefly."""


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Try to lock once. Return False if another open file holds a conflicting lock.

    A lock already held by ``fd`` is converted."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(fd: int, seconds: float, *, shared: bool = False, backoff: Backoff = POLL) -> bool:
    """Call ``try_lock`` repeatedly until it succeeds or ``seconds`` have passed. With 0, try once."""
    if try_lock(fd, shared=shared):
        return True
    until, failures = time.monotonic() + seconds, 1
    while time.monotonic() < until:
        time.sleep(backoff.delay(failures, random.random()))
        if try_lock(fd, shared=shared):
            return True
        failures += 1
    return False


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)
