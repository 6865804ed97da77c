"""One interface of queues: an opened store, the client, the commands' connection, and the asyncio forms agree on it."""

import inspect
from typing import Any

import pytest

from yirangmq.broker.async_queues import AsyncQueues, EmbeddedAsyncDeadLetters
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queue_api import DeadLetterApi, QueueApi, QueueStore
from yirangmq.broker.queues import Queues
from yirangmq.cli.remote_queues import RemoteQueues
from yirangmq.client.admin_calls import AsyncDeadLetters
from yirangmq.client.async_client import AsyncClient
from yirangmq.client.sync_client import Client, ClientDeadLetters

BLOCKING = (Queues, Client, RemoteQueues)
ASYNCIO = (AsyncQueues, AsyncClient)
DEAD_LETTERS = (DeadLetters, ClientDeadLetters, EmbeddedAsyncDeadLetters, AsyncDeadLetters)


def checked_by_mypy(
    store: Queues, client: Client, remote: RemoteQueues
) -> tuple[QueueApi, QueueApi, QueueStore, QueueStore]:
    """The type checker accepts each as the interface, without a cast."""
    return store, client, store, remote


def operations(api: type) -> list[str]:
    return [name for name, one in vars(api).items() if inspect.isfunction(one) and not name.startswith("_")]


def parameters(owner: type, name: str) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter but the object itself."""
    given = list(inspect.signature(getattr(owner, name)).parameters.values())[1:]
    return [(one.name, one.kind, one.default) for one in given]


def test_queue_api_has_all_operations_that_client_and_store_share() -> None:
    shared = set.intersection(*(set(dir(one)) for one in (Queues, Client)))
    public = {name for name in shared if not name.startswith("_") and callable(getattr(Queues, name))}
    assert public - set(operations(QueueApi)) == {"sender", "subscribe"}, "these return objects of their own"


@pytest.mark.parametrize("name", operations(QueueApi))
@pytest.mark.parametrize("owner", [*BLOCKING, *ASYNCIO], ids=lambda owner: owner.__name__)
def test_queue_api_operation_has_the_same_parameters_everywhere(owner: type, name: str) -> None:
    assert parameters(owner, name) == parameters(QueueApi, name)
    method = getattr(owner, name)
    is_asyncio = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    assert is_asyncio == (owner in ASYNCIO)


@pytest.mark.parametrize("name", operations(DeadLetterApi))
@pytest.mark.parametrize("owner", DEAD_LETTERS, ids=lambda owner: owner.__name__)
def test_dead_letter_api_operation_has_the_same_parameters_everywhere(owner: type, name: str) -> None:
    assert parameters(owner, name) == parameters(DeadLetterApi, name)


@pytest.mark.parametrize("name", operations(QueueStore))
def test_remote_queues_have_what_commands_need_of_a_store(name: str) -> None:
    assert parameters(RemoteQueues, name) == parameters(Queues, name) == parameters(QueueStore, name)
