"""Prints ``docs/openapi.json`` from the table of endpoints: ``python tools/openapi_docs.py`` writes it, a test checks
that it is current. A running server answers ``GET /v1/openapi.json`` with the same."""

import json
from pathlib import Path

from yirangmq import __version__
from yirangmq.admin.registry import MethodRegistry
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import QueueOperations
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.http.v1.api import NativeApi
from yirangmq.stores.memory import MemoryStore

PAGE = Path(__file__).parents[1] / "docs" / "openapi.json"


def render() -> str:
    """The whole document."""
    clock, ids, store = SystemClock(), TimeOrderedIds(), MemoryStore()
    verbs = QueueOperations(clock, ids)
    desk = GroupCommitter(store, verbs, clock, lambda call: None, lambda seconds, call: None)
    welcome = ServerIdentity(f"yirangmq {__version__}", "docs", store.durability(), 0)
    return (
        json.dumps(NativeApi(ServerContext(desk, clock, ids, MethodRegistry(verbs), welcome)).document(), indent=1)
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(render())
