"""One who looks at messages outside of a transaction: checks first, then hooks, each in its time.

Knows: the gate's checks, a process for hooks. Does not know: transactions, who waits. Used by one thread at a time;
``close`` by any."""

from typing import Any

from yirangmq.broker.gate import Gate, Uncleared, Verdict, Verdicts, key_of, unfit
from yirangmq.broker.hook_process import HookProcess, Lost
from yirangmq.broker.hook_worker import FAILED, UNFIT, unpacked
from yirangmq.core.errors import HookFailed, QueueError
from yirangmq.core.message import Envelope
from yirangmq.core.processor import Chain, Hook
from yirangmq.format.envelope import NewMessage

MOST_LOST = 3
"""Processes that may be lost over the messages of one request; the rest of them is not tried."""


class Judge:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.process = HookProcess()

    def verdicts(self, needed: Uncleared) -> Verdicts:
        """One for each message. One that fails harms no other; but a hook that hangs again and again is given up."""
        lost = 0
        found: Verdicts = {}
        for envelope in needed.envelopes:
            if lost >= MOST_LOST:
                error = HookFailed(f"not tried: hooks of queue {needed.queue!r} failed before it", field=HOOKS)
                found[key_of(envelope)] = Verdict(needed.chain, error)
                continue
            verdict, was_lost = self._verdict(needed.chain, envelope)
            lost += was_lost
            found[key_of(envelope)] = verdict
        return found

    def _verdict(self, chain: Chain, envelope: Envelope) -> tuple[Verdict, bool]:
        error: QueueError | None = self._gate.checked(chain, envelope)
        made: list[tuple[Hook, NewMessage]] = []
        try:
            for hook in chain.hooks if error is None else ():
                made += [(hook, new) for new in self._run(hook, envelope)]
        except Lost as problem:
            return Verdict(chain, HookFailed(_named(problem, envelope), field=HOOKS)), True
        except HookFailed as problem:
            error = HookFailed(_named(problem, envelope), field=HOOKS)
        except QueueError as problem:
            error = problem
        return Verdict(chain, error, () if error is not None else tuple(made)), False

    def _run(self, hook: Hook, envelope: Envelope) -> list[NewMessage]:
        forbidden = self._gate.may_run(hook)
        if forbidden is not None:
            raise forbidden
        about: dict[str, Any] = {
            "queue": envelope.queue,
            "id": envelope.id,
            "at": envelope.published_at,
            "header": envelope.header,
            "isJson": envelope.is_json,
            "produces": bool(hook.produces),
        }
        answer, body = self.process.call(hook.name, about, envelope.payload, hook.timeout_ms / 1000)
        if answer["outcome"] == UNFIT:
            raise unfit(envelope, hook.name, answer.get("field", "payload"), answer["text"])
        if answer["outcome"] == FAILED:
            raise HookFailed(f"hook {hook.name} failed: {answer['text']}")
        return unpacked(answer, body)

    def close(self) -> None:
        self.process.close()


HOOKS = "processor.hooks"


def _named(error: HookFailed, envelope: Envelope) -> str:
    return f"{str(error).removeprefix(f'{HOOKS}: ')} (message {envelope.id}, queue {envelope.queue!r})"
