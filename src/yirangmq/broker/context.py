"""Transaction context: what the queue operations of a store need besides the transaction.

Queue operations are plain functions in ``broker.operations``, ``broker.selection``, ``broker.settle``,
``broker.expiry_sweeper`` and ``broker.dispatch``. Each takes the context and a transaction, loads messages, decides by
``core.transitions`` and changes them by ``broker.changes``, many at a time. It checks everything before it writes
anything: an operation that raises a ``QueueError`` has changed nothing.

The context also holds what operations remember between transactions. All of that is derived from the store: a context
that is created anew continues where another one ended."""

from dataclasses import dataclass, field

from yirangmq.broker.admission.admission import AdmissionControl, Schemas
from yirangmq.broker.dispatch.state import DispatchState
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.broker.store_time import StoreTime
from yirangmq.broker.unique_payloads import UniquePayloadIndex
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Clock, Ids, Transaction


@dataclass(slots=True)
class SweepState:
    """State of ``broker.expiry_sweeper``: when messages were swept and history was pruned."""

    swept_in: Transaction | None = None
    """The latest transaction in which due messages were swept before a lease."""
    pruned_at: int = 0
    settled: int = 0
    """Messages settled since the latest pruning."""
    is_quiet: bool = True
    """True if no message was published or settled since the latest pruning found no more to do."""


@dataclass(slots=True, eq=False)
class TransactionContext:
    """Context of the transactions of one store. Used by one thread at a time, the committing one."""

    clock: Clock
    ids: Ids
    defaults: Defaults = Defaults()  # noqa: RUF009  frozen
    event_buffer: EventBuffer = field(default_factory=EventBuffer)
    wake_queues: set[str] = field(default_factory=set)
    """Queues that may have messages to lease; the wait list serves and clears them."""
    admission: AdmissionControl = field(init=False)
    schemas: Schemas = field(default_factory=Schemas)
    uniqueness: UniquePayloadIndex = field(default_factory=UniquePayloadIndex)
    dispatch: DispatchState = field(default_factory=DispatchState)
    store_time: StoreTime = field(init=False)
    sweeps: SweepState = field(default_factory=SweepState)
    fitting: dict[str, int] = field(default_factory=dict)
    """Messages that fitted the byte limit at the latest lease, by queue with large messages."""

    def __post_init__(self) -> None:
        self.admission = AdmissionControl(self.defaults)
        self.store_time = StoreTime(self.clock)
