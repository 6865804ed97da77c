"""Producers and consumers as whole processes, each telling through a pipe what it was told, before it goes on.
Started by a fork server that has loaded the package, so that a hundred of them cost seconds, not minutes."""

import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess

import yirangmq
from yirangmq import NewMessage

LONG = 3600.0
"""A lease that outlives the test: a second delivery before then is a double lease."""
Fact = tuple[str, str]
"""What happened, and to which message or lease."""


def produce(url: str, pipe: Connection, seed: int) -> None:
    """Publish for ever; tell each id once it is confirmed."""
    chance = random.Random(seed)
    with yirangmq.open(url) as queues:
        while True:
            payloads = [chance.randbytes(chance.choice((10, 200, 3000))) for _ in range(chance.randint(1, 5))]
            messages = [NewMessage(payload=payload, priority=chance.choice((None, 1, 2))) for payload in payloads]
            for receipt in queues.publish_many("work", messages):
                pipe.send(("published", receipt.id))


def consume(url: str, pipe: Connection, seed: int) -> None:
    """Lease for ever; ack most, give some back, keep a few; tell before giving back and after everything else."""
    chance = random.Random(seed)
    with yirangmq.open(url) as queues:
        while True:
            for delivery in queues.lease("work", chance.randint(1, 4), lease_seconds=LONG, wait=0.05):
                pipe.send(("leased", delivery.id))
                pipe.send(("token", delivery.lease_id))
                fate = chance.random()
                if fate < 0.7:
                    queues.ack(delivery.lease_id)
                    pipe.send(("acked", delivery.id))
                elif fate < 0.9:
                    pipe.send(("giving back", delivery.id))
                    queues.nack(delivery.lease_id, delay=0)


class Crew:
    """Starts workers, kills them, hears what they say."""

    def __init__(self, context: ForkServerContext) -> None:
        self._context = context
        self._alive: list[ForkServerProcess] = []

    def start(self, work: Callable[..., None], *arguments: object) -> "Worker":
        hears, tells = self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(arguments[0], tells, *arguments[1:]), daemon=True)
        process.start()
        tells.close()
        self._alive.append(process)
        return Worker(process, hears)

    def hear_all(self, workers: Sequence["Worker"]) -> list[Fact]:
        """What all of them say until all have ended; read as it comes, so that no full pipe holds anybody up."""
        facts: list[Fact] = []
        talking = list(workers)
        while talking:
            ready = wait([worker.hears for worker in talking])
            for worker in [worker for worker in talking if worker.hears in ready]:
                try:
                    facts.append(worker.hears.recv())
                except EOFError:
                    talking.remove(worker)
                    worker.rest()
        return facts

    def kill_all(self) -> None:
        for process in self._alive:
            process.kill()
            process.join()


class Worker:
    def __init__(self, process: ForkServerProcess, hears: Connection) -> None:
        self.process = process
        self.hears = hears

    def kill(self) -> list[Fact]:
        """SIGKILL; everything it had said before."""
        self.process.kill()
        return self.rest()

    def rest(self) -> list[Fact]:
        """What it says until it ends."""
        facts: list[Fact] = []
        try:
            while True:
                facts.append(self.hears.recv())
        except (EOFError, OSError):
            self.hears.close()
        self.process.join()
        return facts


@contextmanager
def crew(*modules: str) -> Iterator[Crew]:
    """``modules``: what else its workers need, loaded once."""
    context = multiprocessing.get_context("forkserver")
    # "__main__" is pytest itself, which otherwise each worker would load again.
    context.set_forkserver_preload(
        [
            "__main__",
            __name__,
            "yirangmq.broker.queues",
            "yirangmq.stores.sqlite.store",
            "yirangmq.stores.files.store",
            *modules,
        ]
    )
    team = Crew(context)
    try:
        yield team
    finally:
        team.kill_all()
