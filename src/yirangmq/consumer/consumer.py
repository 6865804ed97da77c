"""The consumer as a program uses it.

    consumer = Consumer("sqlite:queue.db", concurrency=4)

    @consumer.handler("mail")
    def send(delivery): ...

    consumer.run()

What a handler returns or raises decides: returning acks; ``Retry`` and ``Reject`` do as they say; any other error gives
the message back as failed."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar, cast

from yirangmq.consumer.ports import Queues
from yirangmq.consumer.route import Handle, Route
from yirangmq.consumer.shift import Interrupted, Settings, Shift, Stop
from yirangmq.consumer.tally import Summary
from yirangmq.consumer.validation import Validation, Validator
from yirangmq.core import validation
from yirangmq.core.errors import BadInput

Function = TypeVar("Function", bound=Handle)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Consumer:
    """Works on one or more queues until it is told to stop. ``source`` is an address such as ``sqlite:queue.db``, or
    queues already open (embedded or connected), which stay open.

    ``concurrency``: messages of each queue worked on at the same time, each in its own thread. ``timeout``: seconds
    after which a handler is not waited for. ``lease_seconds``: length of the leases, extended while the work goes on
    (default: each queue's policy). ``drain_seconds``: how long a stop waits for the work in hand. ``poison_after``: a
    message that fails so many times in a row with the same error is dead (0: as the policy says). ``name``: who we
    are to an operator and in the dead letters; give one if there are two in a process."""

    def __init__(
        self,
        source: "Queues | str",
        *,
        concurrency: int = 1,
        timeout: float | None = None,
        lease_seconds: float | None = None,
        drain_seconds: float = 30,
        poison_after: int = 0,
        name: str | None = None,
    ) -> None:
        validation.check_milliseconds(drain_seconds, "drainSeconds")
        if lease_seconds is not None:
            validation.check_milliseconds(lease_seconds, "leaseSeconds", least=0.001)
        self._source = source
        self._concurrency = concurrency
        self._timeout = timeout
        self._lease_seconds = lease_seconds
        self._drain_seconds = drain_seconds
        self._poison_after = validation.check_count(poison_after, "poisonAfter", least=0)
        self._name = None if name is None else validation.check_consumer(name, "name")
        self._routes: dict[str, Route] = {}
        self._inbox: SimpleQueue[BaseException | None] = SimpleQueue()
        self._shift: Shift | None = None

    # -- what to do -----------------------------------------------------------------------------------------------

    def handler(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        timeout: float | None = None,
        prefetch: int = 0,
        schema: Mapping[str, Any] | Validator | None = None,
    ) -> Callable[[Function], Function]:
        """Decorates the function that works on a queue. ``schema`` is a JSON Schema for the payload, or a function
        that is given its value and raises if it is not fit; what is not fit goes to the dead letters."""

        def register(function: Function) -> Function:
            self.add(
                Route(
                    queue=queue,
                    handle=function,
                    concurrency=self._concurrency if concurrency is None else concurrency,
                    timeout=self._timeout if timeout is None else timeout,
                    prefetch=prefetch,
                    validation=Validation(schema),
                )
            )
            return function

        return register

    def add(self, route: Route) -> None:
        """What ``handler`` does, with everything spelled out."""
        if route.queue in self._routes:
            raise BadInput(f"{route.queue!r} has a handler already", field="queue")
        self._routes[route.queue] = route

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, *, until_empty: bool = False, limit: int | None = None) -> Summary:
        """Work until stopped: by ``stop``, an operator, SIGTERM or SIGINT (if this is the main thread). Each of them
        drains; a second signal ends at once. ``until_empty`` ends when nothing is ready and nothing in work,
        ``limit`` after so many messages."""
        if not self._routes:
            raise BadInput("no queue has a handler", field="handler")
        if self._shift is not None:
            raise BadInput("runs already", field="consumer")
        if limit is not None:
            validation.check_count(limit, "limit")
        with _opened(self._source) as queues, self._signals():
            settings = Settings(
                name=self._name or queues.consumer,
                lease_seconds=self._lease_seconds,
                drain_seconds=self._drain_seconds,
                poison_after=self._poison_after,
                until_empty=until_empty,
                limit=limit,
            )
            self._shift = Shift(queues, list(self._routes.values()), settings, self._inbox)
            try:
                return self._shift.run()
            except Interrupted as stopped:
                if stopped.signal == signal.SIGINT:
                    raise KeyboardInterrupt from None
                raise SystemExit(128 + stopped.signal) from None
            finally:
                self._shift = None
                self._inbox = SimpleQueue()

    def stop(self) -> None:
        """Drain and end, from another thread or from a handler; returns at once. Before ``run`` it ends that run as
        soon as it begins."""
        self._inbox.put(Stop())

    def pause(self) -> None:
        """Take nothing more for now; what is in work goes on."""
        if self._shift is not None:
            self._shift.gate.follow("pause")

    def resume(self) -> None:
        if self._shift is not None:
            self._shift.gate.follow("resume")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop this consumer while it runs in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def heard(number: int, frame: FrameType | None) -> None:
            self._inbox.put(Stop(number))

        before = {number: signal.signal(number, heard) for number in SIGNALS}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old if old is not None else signal.SIG_DFL)


@contextmanager
def _opened(source: "Queues | str") -> Iterator[Queues]:
    if not isinstance(source, str):
        yield source
        return
    queues = _front_door(source)
    try:
        yield queues
    finally:
        queues.close()


def _front_door(address: str) -> Queues:
    """The package's own way in, asked for by name: this floor knows neither stores nor sockets."""
    front = import_module("yirangmq")
    return cast("Queues", getattr(front, "connect", front.open)(address))
