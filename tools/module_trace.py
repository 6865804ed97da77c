"""Counts the modules of ``yirangmq`` that one operation touches, and its Python calls. ``make trace-modules``.

    python tools/module_trace.py [--json] [--list] [--repeats 5]

| row | measured in | counted |
|---|---|---|
| socket publish | a server on SQLite | modules touched by one publish over its unix socket: bytes in, commit, reply |
| lease and ack | the same server | modules touched by the lease and the ack of one message over its unix socket |
| http publish | the same server | modules touched by one ``POST /v1/queues/{queue}/messages`` |
| topic catch-up | the same server | modules touched by a subscriber that connects and is sent 50 records of a topic |
| publish --db | a new process | modules in ``sys.modules`` after ``yirangmq publish --db FILE -q QUEUE '{}'`` |
| idle server | the same server | modules in ``sys.modules`` when it is ready, before its first request |

A module is touched if one of its functions is called. ``__init__`` modules are not counted, neither touched nor loaded.
Calls are those of functions, comprehensions and generators of the package. The bodies of modules and classes, which
imports run, and functions that ``dataclasses`` generates are not counted. The number of an operation is the smallest of
its repeats, because a timer may run beside one of them.

The server is ``python -m yirangmq serve`` in a child process, with a profile function (``sys.setprofile``,
``threading.setprofile``) in every thread. A thread without it reads commands from stdin: ``start``, ``stop``,
``loaded``. ``stop`` waits until no function was called for ``QUIET_SECONDS``, so that work after the reply is counted.
Each operation is done ``WARM_UP`` times before it is traced, so that lazy imports and caches are not. It is traced
``--repeats`` times; a module counts if every repeat touched it, which leaves out timers that ran beside one of them."""

import argparse
import http.client
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple, cast

PACKAGE = "yirangmq"
QUEUE, TOPIC, RECORDS = "traced", "traced", 50
WARM_UP = 3
QUIET_SECONDS = 0.01
"""Less than the interval of the server's fastest timer (0.1 s), or every trace would hold it."""
LONGEST_SECONDS = 5.0
"""After which ``stop`` does not wait any longer for a server that is never quiet."""
LIMITS = {"socket publish": 35, "http publish": 40, "topic catch-up": 27, "publish --db": 90}
"""Wanted number of modules, by operation."""
CALL_LIMITS = {"socket publish": 100, "http publish": 120, "lease and ack": 150, "publish --db": 220}
"""Wanted number of Python calls, by operation."""
ANSWER = "module_trace: "
"""Begins the lines of stdout that answer a command."""


class Row(NamedTuple):
    """``modules``: in order of first touch, or of their import where ``is_loaded``. ``calls``: None if not counted."""

    name: str
    is_loaded: bool
    modules: list[str]
    calls: int | None


# -- in the process that is traced ------------------------------------------------------------------------------------


class Trace:
    """Modules by first call and the number of calls, while it is recording. ``on_call`` is the profile function of
    every thread."""

    def __init__(self) -> None:
        self._is_recording = False
        self._called_at = 0.0
        self._touched: dict[str, None] = {}
        self._calls = 0

    def on_call(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self._is_recording:
            return
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(f"{PACKAGE}.") and "__path__" not in frame.f_globals:
            self._called_at = time.monotonic()
            self._touched.setdefault(name)
            code = frame.f_code
            self._calls += bool(code.co_flags & inspect.CO_OPTIMIZED and code.co_filename != "<string>")

    def start(self) -> None:
        self._touched = {}
        self._calls = 0
        self._is_recording = True

    @property
    def calls(self) -> int:
        return self._calls

    def stop(self) -> tuple[list[str], int]:
        end = time.monotonic() + LONGEST_SECONDS
        self._called_at = time.monotonic()
        while (now := time.monotonic()) < min(self._called_at + QUIET_SECONDS, end):
            time.sleep(min(self._called_at + QUIET_SECONDS, end) - now + 0.001)
        self._is_recording = False
        return list(self._touched), self._calls


def loaded() -> list[str]:
    """Modules of the package in ``sys.modules``, in the order of their import."""
    modules = list(sys.modules.items())
    return [name for name, one in modules if name.startswith(f"{PACKAGE}.") and not hasattr(one, "__path__")]


def obey(trace: Trace) -> None:
    """Reads commands from stdin until it is closed. It reads the descriptor itself: a thread that waits in
    ``sys.stdin`` would keep the interpreter from ending."""
    commands: dict[str, Callable[[], Any]] = {"start": trace.start, "stop": trace.stop, "loaded": loaded}
    while command := os.read(0, 100).decode().strip():
        os.write(1, f"{ANSWER}{json.dumps(commands[command]())}\n".encode())


def run_traced(arguments: list[str]) -> None:
    """``python -m yirangmq`` with these arguments, under a profile function that stdin starts and stops."""
    trace = Trace()
    threading.Thread(target=obey, args=(trace,), daemon=True).start()
    threading.setprofile(trace.on_call)
    sys.setprofile(trace.on_call)
    run(arguments)


def run_and_list(arguments: list[str]) -> None:
    """``python -m yirangmq`` with these arguments, then the modules that it has loaded and the calls it made."""
    trace = Trace()
    trace.start()
    sys.setprofile(trace.on_call)
    try:
        run(arguments)
    finally:
        sys.setprofile(None)
        print(f"{ANSWER}{json.dumps((loaded(), trace.calls))}", flush=True)


def run(arguments: list[str]) -> None:
    sys.argv[1:] = arguments
    runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)


# -- in the process that asks -----------------------------------------------------------------------------------------


class Server:
    """A server on SQLite in ``folder``, in a child process that obeys commands."""

    def __init__(self, folder: Path) -> None:
        serve = ["serve", "--data", str(folder), "--http", "127.0.0.1:0", "--log-level", "warning"]
        self._process = child("--run-traced", serve, stdin=subprocess.PIPE)
        ready = self._line(lambda line: " is ready at " in line)
        self.address, self.http = re.findall(r"(?<= )(unix:[^,]+|http://[^;]+)(?=[,;])", ready)

    def _line(self, is_wanted: Callable[[str], bool]) -> str:
        for line in cast("IO[str]", self._process.stdout):
            if is_wanted(line):
                return line
        raise SystemExit(f"the server ended with {self._process.wait()}")

    def tell(self, command: str) -> Any:
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write(f"{command}\n")
        stdin.flush()
        return json.loads(self._line(lambda line: line.startswith(ANSWER)).removeprefix(ANSWER))

    def trace(self, name: str, operation: Callable[[], object], repeats: int, after: Callable[[], object]) -> Row:
        """``operation`` returns when it is answered; ``after`` is called each time, and is not traced."""
        runs: list[list[str]] = []
        calls: list[int] = []
        for _ in range(WARM_UP + repeats):
            self.tell("start")
            operation()
            modules, number = self.tell("stop")
            runs.append(modules)
            calls.append(number)
            after()
        runs = runs[WARM_UP:]
        always = [module for module in runs[0] if all(module in other for other in runs)]
        return Row(name, False, always, min(calls[WARM_UP:]))

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


def child(role: str, arguments: list[str], stdin: int) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).resolve()), role, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("YIRANGMQ_")}
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment)


def trace_server(folder: Path, repeats: int) -> list[Row]:
    """The rows that are measured in a server."""
    from yirangmq import connect  # not above: child processes load what their command loads, and no more

    with closing(Server(folder)) as server:
        idle = Row("idle server", True, server.tell("loaded"), None)
        web = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=30)

        def post() -> None:
            web.request("POST", f"/v1/queues/{QUEUE}/messages", b"{}", {"Content-Type": "application/json"})
            answer = web.getresponse()
            assert answer.status in (200, 201), (answer.status, answer.read())
            answer.read()

        with connect(server.address) as client:
            opened = ExitStack()

            def catch_up() -> None:
                records = opened.enter_context(client.topics.subscribe(TOPIC, start="beginning"))
                assert len({next(records).sequence for _ in range(RECORDS)}) == RECORDS

            def lease_and_ack() -> None:
                [delivery] = client.lease(QUEUE)
                client.ack(delivery.lease_id)

            client.topics.publish_many([(TOPIC, {"n": number}) for number in range(RECORDS)])
            rows = [
                server.trace("socket publish", lambda: client.publish(QUEUE, {}), repeats, opened.close),
                server.trace("lease and ack", lease_and_ack, repeats, opened.close),
                server.trace("http publish", post, repeats, opened.close),
                server.trace("topic catch-up", catch_up, repeats, opened.close),
            ]
        web.close()
    return [*rows, idle]


def trace_command(folder: Path) -> Row:
    """``publish --db`` on a store that exists already."""
    publish = ["publish", "--db", str(folder / "queue.db"), "-q", QUEUE, "{}"]
    for _ in range(2):
        process = child("--run-and-list", publish, stdin=subprocess.DEVNULL)
        written, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"publish --db ended with {process.returncode}")
    modules, calls = json.loads(written.rpartition(ANSWER)[2])
    return Row("publish --db", True, modules, calls)


def report(rows: list[Row], is_listing: bool) -> None:
    print(f"  {'operation':<16} {'modules':>7}  {'counted':<7}  {'calls':>5}")
    for row in rows:
        kind, calls = "loaded" if row.is_loaded else "touched", "" if row.calls is None else row.calls
        print(f"  {row.name:<16} {len(row.modules):>7}  {kind:<7}  {calls:>5}")
    if is_listing:
        for row in rows:
            print(f"\n{row.name}, {'loaded' if row.is_loaded else 'touched'} in this order:")
            print("".join(f"  {module.removeprefix(f'{PACKAGE}.')}\n" for module in row.modules), end="")
    print()
    for row in rows:
        if row.name in LIMITS:
            limit, count = LIMITS[row.name], len(row.modules)
            print(f"target: {row.name} | {count} modules | <= {limit} | {'reached' if count <= limit else 'short'}")
    for row in rows:
        if row.name in CALL_LIMITS and row.calls is not None:
            limit, count = CALL_LIMITS[row.name], row.calls
            print(f"target: {row.name} | {count} calls | <= {limit} | {'reached' if count <= limit else 'short'}")


def main() -> None:
    if sys.argv[1:2] in (["--run-traced"], ["--run-and-list"]):  # the child processes of ``child``
        role, *arguments = sys.argv[1:]
        (run_traced if role == "--run-traced" else run_and_list)(arguments)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON document: modules and calls by operation",
    )
    parser.add_argument("--list", action="store_true", help="print the modules too, in order of first touch")
    parser.add_argument("--repeats", type=int, default=5, help="traces of each operation (default: 5)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = trace_server(Path(folder) / "data", chosen.repeats)
        rows.insert(4, trace_command(Path(folder)))
    if chosen.json:
        print(json.dumps({row.name: {"modules": row.modules, "calls": row.calls} for row in rows}))
    else:
        report(rows, chosen.list)


if __name__ == "__main__":
    main()
