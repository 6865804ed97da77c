"""Command ``token new``: a random token for ``token``, ``http_tokens``, ``programs`` or ``pair_key``.

A token file appears with its whole content or not at all, readable by its owner only. An existing file is never
replaced."""

import argparse
import contextlib
import os
import secrets
from pathlib import Path

from yirangmq.cli import output
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.core.errors import BadInput
from yirangmq.fsio.atomic_file import sync_folder

RANDOM_BYTES = 24
"""Random bytes of a token: 192 bits, 32 characters of base64url."""
OWNER_ONLY = 0o600


def new_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file", metavar="PATH", help="write it to this new file, which only its owner may read, and do not print it"
    )


def run_new(args: argparse.Namespace, screen: Screen) -> int:
    token = new_token()
    if args.file is None:
        screen.answer({"ok": True, "token": token, "file": None}, token)
        return output.OK
    path = Path(args.file).absolute()
    write_new(path, token)
    screen.answer({"ok": True, "token": None, "file": str(path)}, f"written to {path}")
    return output.OK


def new_token() -> str:
    """Return a random token. It never begins with ``-``, so that it can be the value of a flag."""
    while (token := secrets.token_urlsafe(RANDOM_BYTES)).startswith("-"):
        pass
    return token


def write_new(path: Path, token: str) -> None:
    """Create a token file atomically: it appears under its name with its whole content, or not at all.

    An existing file is not replaced, because programs may be using the token in it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY)
        try:
            os.write(handle, f"{token}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        os.link(temporary, path)
        sync_folder(path.parent)
    except FileExistsError:
        raise BadInput(f"{path} exists already; name a new file", field="file") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", field="file") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


COMMANDS = {
    "token": Command(
        about="Make a token: what clients show, or what the nodes of a pair sign with. It is random and belongs to "
        "nothing until a setting names it (docs/security.md).",
        examples=(
            ("a new token", "yirangmq token new"),
            ("as a file for token_file", "yirangmq token new --file token"),
        ),
        subcommands={
            "new": (
                "print a new random token, or write it to a file",
                Command(
                    about="Print a new random token of 32 characters (192 bits), or write it to a new file that only "
                    "its owner may read.",
                    examples=(
                        ("print one", "yirangmq token new"),
                        ("for token_file, tokenFile or pair_key_file", "yirangmq token new --file token"),
                    ),
                    options=new_options,
                    run=run_new,
                ),
            ),
        },
    ),
}
