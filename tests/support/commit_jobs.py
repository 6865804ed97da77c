"""Jobs of a group commit, and a runner of them."""

from yirangmq.broker.admission.admission import AdmissionControl, NeedsCheck
from yirangmq.broker.commit_jobs import JobRunner
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.core.errors import BadInput
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Store, Transaction
from yirangmq.core.processor import Chain


def refused(transaction: Transaction) -> None:
    raise BadInput("no", field="it")


def unchecked(transaction: Transaction) -> None:
    """Its messages must be checked outside the transaction first."""
    raise NeedsCheck("work", Chain(), [])


def runner_on(store: Store, gate: AdmissionControl | None = None) -> JobRunner:
    return JobRunner(store, EventBuffer(), gate or AdmissionControl(Defaults()))
