"""Limits of the system that a test raises for itself and the processes it starts."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_limit(wanted: int) -> Iterator[int]:
    """As many open files as are allowed, up to ``wanted``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
