"""The entry: parse, run, and turn whatever went wrong into one line and an exit code."""

import os
import sys
from collections.abc import Sequence

from yirangmq import __version__
from yirangmq.cli import exits
from yirangmq.cli.parser import build
from yirangmq.cli.screen import Screen
from yirangmq.core.errors import QueueError, Unreachable


def run(argv: Sequence[str] | None = None) -> int:
    """What ``yirangmq`` does; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    screen = Screen(json="--json" in given)
    try:
        code = _run(given, screen)
        screen.flush()
        return code
    except QueueError as error:
        return _failed(screen, error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return exits.PIPE_CLOSED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0
    except Exception as error:
        if os.environ.get("YIRANGMQ_TRACEBACK"):
            raise
        return _failed(screen, QueueError(f"{type(error).__name__}: {error}"))


def _run(given: list[str], screen: Screen) -> int:
    if given[:1] == ["--version"]:
        return _version(screen)
    parser = build(only=given[0] if given else "")
    args = parser.parse_args(given)
    if args.version:
        return _version(screen)
    if args.command is None:
        parser.print_help()
        return exits.OK
    del parser  # a server runs for years without it
    code: int = args.run(args, screen)
    return code


def _version(screen: Screen) -> int:
    screen.answer({"version": __version__}, f"yirangmq {__version__}")
    return exits.OK


def _failed(screen: Screen, error: QueueError) -> int:
    """What was printed before stands before the complaint."""
    try:
        screen.flush()
    except BrokenPipeError:
        _forget_stdout()
    screen.problem(error)
    if isinstance(error, Unreachable):
        screen.note("is a server running there? 'yirangmq serve' starts one")
    return exits.exit_code(error.code)


def _forget_stdout() -> None:
    """The reader has gone; without this the interpreter would complain once more while it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
