"""Which witness the settings name. What is not named is not loaded.

Knows: the two kinds. Does not know: how either works."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from yirangmq.core.failover import Pace, Watching, Wish, Witness

FILE = "file:"


class ThirdParty(Protocol):
    """It may block: used from one thread that is not the loop's."""

    def exchange(self, wish: Wish, term: int) -> tuple[Witness, int, int]:
        """Read, and renew, take or give back as wished: what it says, when this began, the highest term of another."""

    def close(self) -> None: ...


def opened(url: str, watching: Watching, pace: Pace, now: Callable[[], int]) -> ThirdParty:
    if url.startswith(FILE):
        from yirangmq.pair.shared_file import SharedFile

        return SharedFile(Path(url.removeprefix(FILE)), watching, now)
    from yirangmq.pair.etcd_key import EtcdKey

    return EtcdKey(url, watching, pace, now)
