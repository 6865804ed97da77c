"""A commit that found no space may be repeated once, with space that the store had reserved (stores/reserve.py)."""

from collections.abc import Callable

from yirangmq.core.errors import StoreFull
from yirangmq.core.ports import Store


def relieve(store: Store, error: BaseException) -> bool:
    """Whether the work that failed with this error may be repeated now. Publishing is repeated only where the store
    has space inside itself; what is refused again is refused for good."""
    if not isinstance(error, StoreFull):
        return False
    offered: Callable[[], bool] | None = getattr(store, "relieve", None)  # not every store has a reserve
    return offered is not None and offered()
