"""Our daemon beside Redis Streams and RabbitMQ, on the same work, in one run. ``make bench-peers``.

2000-byte messages, every confirm after fsync, Python clients on all sides. Every figure is the median of several
repeats, with its spread; rivals take turns. Beside each stands whose work the processors did; a run with more than 0.4
cores of other work is repeated. What is compared, and how fair it is: docs/benchmarks.md. Each target line at the end
has: name | figure | wanted | reached or short."""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import peers_fetch
from peers_alone import Bench, backlog, latency, restarts, starts
from peers_lines import Contender, Figure, Hall, Line
from peers_ours import OurServer
from peers_process import Server
from peers_rabbitmq import RabbitServer
from peers_redis import RedisServer

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / ".venv-bench/bin/python"
SECTIONS = ("lines", "latency", "starts", "restart", "backlog")
SINGLE, MANY, TAKE, THROUGH, CROWD = "one in flight", "pipelined publish", "consume+ack", "end to end 1+1", "8+8"
LINES = (
    Line(SINGLE, 3_000, producers=1, role="publish_singly"),
    Line(MANY, 60_000, producers=1),
    Line(TAKE, 60_000, consumers=1, fill=True),
    Line(THROUGH, 40_000, producers=1, consumers=1),
    Line(CROWD, 60_000, producers=8, consumers=8),
)
AGAINST = {
    ("RabbitMQ", SINGLE): 2.0,
    ("RabbitMQ", MANY): 3.0,
    ("RabbitMQ", TAKE): 2.0,
    ("RabbitMQ", THROUGH): 3.0,
    ("RabbitMQ", CROWD): 3.0,
    ("Redis", SINGLE): 1.0,
    ("Redis", MANY): 1.0,
    ("Redis", THROUGH): 1.0,
    ("Redis", CROWD): 0.7,
}
"""How many times a rival's rate ours should be."""


def compare(bench: Bench, wanted: list[Line]) -> None:
    for line in wanted:
        print(f"{line.name}, {line.count:,} messages")
        figures = {contender.name: Figure() for contender in bench.contenders if contender.plays(line)}
        for _ in range(bench.repeats):
            for contender in bench.contenders:
                if contender.plays(line):
                    figures[contender.name].runs.append(bench.hall.quiet_run(contender, line))
        for name, figure in figures.items():
            print(f"  {name:<12} {figure}", flush=True)
        ours = figures["ours"].rate
        for name, figure in figures.items():
            least = AGAINST.get((name, line.name))
            if least is not None:
                ratio = ours / figure.rate
                bench.target(f"{line.name} vs {name}", f"{ratio:.2f} x", f">= {least:g} x", ratio >= least)
            elif name != "ours":
                bench.note(f"{line.name} vs {name}: {ours / figure.rate:.2f} x")


def contenders(folder: Path, args: argparse.Namespace) -> list[Contender]:
    python = Path(sys.executable)
    ours = Contender("ours", OurServer(folder / "ours"), "peers_ours.py", python)
    if args.only == "ours":
        return [ours]
    if not CLIENTS.exists():
        sys.exit(f"{CLIENTS} is missing: run 'make bench-peers', or this with --only ours")
    packages = peers_fetch.find()
    redis = RedisServer(folder / "redis", packages)
    over = {"over": args.redis_over}
    return [
        ours,
        Contender("Redis", redis, "peers_redis.py", CLIENTS, over),
        Contender("Redis MULTI", redis, "peers_redis.py", CLIENTS, {**over, "multi": True}, "publish_many"),
        Contender("RabbitMQ", RabbitServer(folder / "rabbitmq", packages), "peers_rabbitmq.py", CLIENTS),
    ]


@contextlib.contextmanager
def running(servers: list[Server]) -> Iterator[None]:
    """All of them up; all of them down at the end, whatever happened."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.start()
        yield


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer messages and repeats, to see that all works")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("ours",), help="without the peers")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--lines", nargs="+", choices=[line.name for line in LINES], help="some lines only")
    parser.add_argument("--redis-over", choices=("unix", "tcp"), default="unix")
    parser.add_argument("--deep", type=int, default=1_000_000, help="messages waiting in the backlog section")
    parser.add_argument("--waiting", type=int, default=300_000, help="messages waiting in the restart section")
    parser.add_argument("--peers-backlog", action="store_true", help="the backlog for the peers too; takes gigabytes")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for a quiet moment before each run")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder here)")
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.deep, args.waiting, args.patience = 1, 20_000, 20_000, 0
    return args


def main() -> None:
    args = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped and removed then too
    with tempfile.TemporaryDirectory(dir=args.folder or ROOT, prefix=".bench-run-") as name:
        folder = Path(name)
        taking_part = contenders(folder, args)
        servers = list({id(one.server): one.server for one in taking_part}.values())
        bench = Bench(folder, Hall(folder, args.patience), taking_part, args)
        lines = [line.shorter(10 if args.quick else 1) for line in LINES if line.name in (args.lines or line.name)]
        if {"lines", "latency"} & set(args.sections):
            with running(servers):
                if "lines" in args.sections:
                    compare(bench, lines)
                if "latency" in args.sections:
                    latency(bench)
        if "starts" in args.sections:
            starts(bench)
        if "restart" in args.sections:
            restarts(bench)
        if "backlog" in args.sections:
            backlog(bench, [line for line in lines if line.producers + line.consumers <= 2])
        print("\n" + "\n".join([*bench.notes, *bench.targets]))


if __name__ == "__main__":
    main()
