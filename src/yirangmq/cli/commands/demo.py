"""Command ``demo``: publish, lease, ack, retry and redrive on a new store, with each step explained."""

import argparse
import tempfile
from pathlib import Path

import yirangmq
from yirangmq.broker.queue_api import QueueStore
from yirangmq.cli import output
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.core.message import Reason
from yirangmq.format.envelope import NewMessage
from yirangmq.format.json_codec import dumps

QUEUE = "telemetry"
POLICY = {"retry": {"limit": 1, "initialDelaySec": 0.2}}
"""One retry after 0.2 s: with the default policy the same steps would take a minute."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=("fs", "sqlite"), default="sqlite", help="kind of the store")
    parser.add_argument("--keep", action="store_true", help="keep the store")


def run(args: argparse.Namespace, screen: Screen) -> int:
    if args.keep:
        return _play(args, screen, Path(tempfile.mkdtemp(prefix="yirangmq-demo-")))
    with tempfile.TemporaryDirectory(prefix="yirangmq-demo-") as folder:
        return _play(args, screen, Path(folder))


def _play(args: argparse.Namespace, screen: Screen, folder: Path) -> int:
    url = f"sqlite:{folder / 'yirang.db'}" if args.backend == "sqlite" else f"files:{folder / 'queues'}"
    with yirangmq.open(url, consumer="demo") as queues:
        demo = DemoSteps(queues, screen)
        demo.step(f"a fresh store: {url}", durability=queues.durability())
        demo.publish()
        demo.work()
        demo.fail()
        demo.redrive()
        counts = queues.counts(QUEUE)
        demo.step("all done", published=counts.published, acked=counts.acked, failed=counts.failed, dead=counts.dead)
    if screen.json:
        screen.document({"ok": True, "store": url, "kept": args.keep, "steps": demo.steps})
    else:
        report = f"The store is left at {folder}." if args.keep else "The store was removed; --keep keeps it."
        screen.report(f"\n{report} Next: yirangmq publish --help")
    return output.OK


class DemoSteps:
    """Runs the steps of the demo, and prints and records each one."""

    def __init__(self, queues: QueueStore, screen: Screen) -> None:
        self._queues = queues
        self._screen = screen
        self.steps: list[dict[str, object]] = []

    def step(self, text: str, **details: object) -> None:
        self.steps.append({"step": text, **details})
        if not self._screen.json:
            shown = "".join(f"\n      {name}: {_short(value)}" for name, value in details.items())
            self._screen.report(f"{len(self.steps):>2}. {text}{shown}")
            self._screen.flush()

    def publish(self) -> None:
        self._queues.set_policy(QUEUE, POLICY)
        self.step("set a policy: one retry, after 0.2 s", policy=POLICY)
        urgent = NewMessage(payload={"alarm": "overheated"}, priority=0, id="alarm-1")
        receipts = self._queues.publish_many(QUEUE, [{"temp": 36.1, "rpm": 1200}, urgent])
        self.step("publish two messages with one commit, the second with priority 0", ids=[r.id for r in receipts])

    def work(self) -> None:
        first = self._queues.lease(QUEUE)[0]
        self.step("lease: priority goes first", message=first.id, payload=first.value(), lease=first.lease_id)
        self._queues.ack(first.lease_id)
        self.step("ack: the work is done, and that is on disk")

    def fail(self) -> None:
        second = self._queues.lease(QUEUE)[0]
        self._queues.nack(second.lease_id, Reason.HANDLER_ERROR, "the disk of the archive is full")
        self.step(
            "lease the other one and nack it: it is retried after a backoff", message=second.id, attempt=second.attempt
        )
        again = self._queues.lease(QUEUE, wait=5)[0]
        self.step("lease it again after its backoff", message=again.id, attempt=again.attempt)
        self._queues.nack(again.lease_id, Reason.HANDLER_ERROR, "the disk of the archive is still full")
        self.step("nack it again: no attempts are left, so it becomes a dead letter")
        for view in self._queues.dead_letters.list(f"{QUEUE}-dlq"):
            self.step("the dead letter, in the dead-letter queue", record=view.record())

    def redrive(self) -> None:
        moved = self._queues.dead_letters.redrive(f"{QUEUE}-dlq", "reasonCode=HANDLER_ERROR")
        self.step("the disk has space again: redrive by reason", moved=moved.count)
        last = self._queues.lease(QUEUE)[0]
        self._queues.ack(last.lease_id)
        self.step("lease and ack: attempts count from 1 again", message=last.id, attempt=last.attempt)


def _short(value: object) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


COMMANDS = {
    "demo": Command(
        about="Publish, lease, ack, retry and redrive a few messages in a new store in a temporary folder, step "
        "by step.",
        examples=(
            ("on SQLite", "yirangmq demo"),
            ("on JSON files, and keep them", "yirangmq demo --backend fs --keep"),
        ),
        options=add_options,
        run=run,
    )
}
