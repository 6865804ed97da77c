"""Consumer process from the options of ``consume --handler`` and ``consume --exec``.

It builds the route and runs ``consumer.consumer``. The handler's module is found as with ``python -m``: the current
folder counts too."""

import argparse
import io
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from typing import Any

from yirangmq.cli import connection, output
from yirangmq.cli.arguments import read_json
from yirangmq.cli.commands.consume import DRAIN_SECONDS, GRACE_SECONDS, stopping_on_signals
from yirangmq.cli.output import Screen
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.routes import HandlerRoute, Validation
from yirangmq.consumer.settler import ConsumerSummary
from yirangmq.consumer.subprocess_handler import SubprocessHandler
from yirangmq.core.errors import BadInput
from yirangmq.observe import logs

MAX_SCHEMA_BYTES = 1024 * 1024
SHELL = "/bin/sh"


def run(args: argparse.Namespace, screen: Screen) -> int:
    route = _program_route(args) if args.program is not None else _function_route(args)
    log = logs.start_log("info", "json" if screen.json else "auto", sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # output of handlers appears immediately
    try:
        with ExitStack() as stack, connection.open_or_create(args) as queues:
            consumer = Consumer(
                queues,
                lease_seconds=args.lease_seconds,
                drain_seconds=DRAIN_SECONDS if args.drain_seconds is None else args.drain_seconds,
                poison_after=args.poison_after or 0,
                name=args.consumer_id,
            )
            consumer.add(route)
            stack.enter_context(stopping_on_signals(consumer.stop_signals))
            summary = consumer.run(until_empty=args.until_empty, limit=args.limit)
    finally:
        logging.getLogger().removeHandler(log)
    screen.answer(asdict(summary), _summary_text(summary))
    return output.OK


def _summary_text(summary: ConsumerSummary) -> str:
    counted = [f"{count} {name}" for name, count in asdict(summary).items() if count or name == "done"]
    return ", ".join(counted)


# -- routes ------------------------------------------------------------------------------------------------------------


def _function_route(args: argparse.Namespace) -> HandlerRoute:
    return HandlerRoute(
        queue=args.queue,
        handle=_function(args.handler),
        concurrency=1 if args.concurrency is None else args.concurrency,
        timeout=args.timeout,
        prefetch=args.prefetch or 0,
        validation=Validation(_schema(args)),
    )


def _program_route(args: argparse.Namespace) -> HandlerRoute:
    program = SubprocessHandler(
        _command(args.program, shell=args.shell),
        raw=args.raw,
        timeout=args.timeout,
        grace=GRACE_SECONDS if args.kill_after is None else args.kill_after,
        retry_after=args.retry_after,
    )
    return HandlerRoute(
        queue=args.queue,
        handle=program,
        concurrency=1 if args.concurrency is None else args.concurrency,
        prefetch=args.prefetch or 0,
        validation=Validation(_schema(args), decode=False),
        cancel=program.cancel,
    )


def _command(text: str, *, shell: bool) -> list[str]:
    if shell:
        return [SHELL, "-c", text]
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"{text!r} cannot be split into words: {error}", field="--exec") from None
    if not words or shutil.which(words[0]) is None:
        raise BadInput(f"there is no program {' '.join(words[:1])!r}", field="--exec")
    return words


def _function(text: str) -> Callable[..., Any]:
    """Import a handler ``MODULE:FUNCTION``. Adds the current folder to ``sys.path``, as ``python -m`` does."""
    module, colon, path = text.partition(":")
    if not (module and colon and path):
        raise BadInput(f"{text!r} is not MODULE:FUNCTION", field="--handler")
    if os.getcwd() not in sys.path:  # noqa: PTH109  (a path as sys.path has it)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = import_module(module)
    except Exception as error:
        text = f"{module} cannot be imported: {type(error).__name__}: {error}"
        raise BadInput(text, field="--handler") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise BadInput(f"{module} has no {path}", field="--handler")
        found = getattr(found, name)
    if not callable(found):
        raise BadInput(f"{text} is not a function", field="--handler")
    function: Callable[..., Any] = found
    return function


def _schema(args: argparse.Namespace) -> Any:
    if args.schema is None:
        return None
    schema = read_json(args.schema, MAX_SCHEMA_BYTES, "--schema")
    if not isinstance(schema, dict | bool):
        raise BadInput("must be an object", field="--schema")
    return schema
