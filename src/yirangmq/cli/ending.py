"""How a server ends its work: what was asked for is answered, and leases are kept or given back.

Knows: in which order the parts come to rest, and how long each may take. Does not know: why it is the end."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from yirangmq.broker.queries import some_with_leases
from yirangmq.broker.settle import Leases
from yirangmq.cli.notify import notify
from yirangmq.cli.parts import ServerParts
from yirangmq.core.message import lease_id
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.observe.logs import log, values

PER_PAGE = 500
LAST_SECONDS = 1.0
"""For giving back what webhooks did not finish."""
STEP_SECONDS = 0.005
"""How often a stopping server looks whether its work is done."""


class Ending:
    """To be made on the loop's thread."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()

    async def settle(self) -> None:
        """What is under way is finished; leases are given back, if they are at a stop."""
        parts = self._parts
        until = self._loop.time() + parts.config.stop_seconds
        await self._until(lambda: parts.desk.is_idle and parts.webhooks.is_idle and parts.bridging.is_idle, until)
        await self._end_webhooks()
        if parts.config.on_stop == "release":
            log.info("released", extra=values(leases=await self._release_leases()))

    async def drain(self) -> None:
        """No new clients, no new requests; answers to all that was asked; then goodbye."""
        notify("STOPPING=1")
        parts, entrance = self._parts, self._parts.entrance
        if parts.pair is not None:
            parts.pair.stop()
        parts.ticking.stop()
        log.info("stopping", extra=values(clients=entrance.clients, leases=parts.config.on_stop))
        entrance.close()
        entrance.stop()
        parts.pages.stop()
        parts.webhooks.stop()
        parts.bridging.drain()
        if parts.topics is not None:
            parts.topics.stop()
        until = self._loop.time() + parts.config.stop_seconds
        await self._until(lambda: self._is_idle and parts.webhooks.is_idle, until)
        await self._end_webhooks()
        if parts.config.on_stop == "release" and parts.desk.duty.is_on:
            log.info("released", extra=values(leases=await self._release_leases()))
        entrance.say_bye()
        await self._until(lambda: not entrance.clients, until)
        entrance.abort()
        await asyncio.sleep(0)  # so that the aborted ones are told

    @property
    def _is_idle(self) -> bool:
        """Nothing is asked for that is not answered."""
        parts = self._parts
        are_topics = parts.topics is None or parts.topics.is_idle
        return parts.desk.is_idle and parts.pages.is_idle and are_topics and parts.bridging.is_idle

    async def _end_webhooks(self) -> None:
        """What is still on its way goes back in line."""
        webhooks = self._parts.webhooks
        if not webhooks.is_idle:
            webhooks.abort()
            await self._until(lambda: self._is_idle and webhooks.is_idle, self._loop.time() + LAST_SECONDS)

    async def _until(self, is_done: Callable[[], bool], until: float) -> None:
        while not is_done() and self._loop.time() < until:  # noqa: ASYNC110  (several parts, none tells when it is)
            await asyncio.sleep(STEP_SECONDS)

    async def _release_leases(self) -> int:
        """What was leased through this server goes back in line, page by page."""
        total = 0
        after, is_first_page = "", True
        while after or is_first_page:
            queues, after = await self._ask(partial(some_with_leases, after=after))
            is_first_page = False
            for queue in queues:
                cursor, is_first = "", True
                while cursor or is_first:
                    count, cursor = await self._ask(partial(self._give_back, queue=queue, cursor=cursor))
                    total, is_first = total + count, False
        return total

    def _give_back(self, transaction: Transaction, queue: str, cursor: str) -> tuple[int, str]:
        page = transaction.scan(queue, State.LEASED, PER_PAGE, cursor)
        ours = [lease_id(message) for message in page.messages if message.consumer in self._parts.house.consumers]
        errors = self._parts.desk.verbs.release(transaction, Leases(ours), None)
        return errors.count(None), page.cursor

    async def _ask(self, work: Callable[[Transaction], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._parts.desk.submit(
            work, lambda value, error: future.set_exception(error) if error else future.set_result(value)
        )
        return await future
