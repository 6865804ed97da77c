"""Print the table of the examples into ``examples/README.md`` and ``docs/guides/examples.md``.

The feature and the needs of an example are read from its header.

    python tools/examples_docs.py"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
README = EXAMPLES / "README.md"
PAGE = ROOT / "docs" / "guides" / "examples.md"

GROUPS = {
    "Producers": (
        "publish.py", "sender.py", "batches.py", "deduplication.py", "delayed.py", "priorities.py", "groups.py",
        "quota.py", "web_app.py", "load.sh",
    ),
    "Consumers": (
        "worker.py", "concurrent_worker.py", "subscribe.py", "asyncio_worker.py", "asyncio_client.py", "legacy.sh",
        "leases.py", "retries.py", "dead_letters.py", "request_reply.py", "dispatch.py", "own_tests.py",
    ),
    "Policies": ("checks.py", "json_schema.py", "hook.py", "schedule.py", "webhook_receiver.py"),
    "Topics": ("topic_subscriber.py", "topic_filter.py", "ledger.py", "bridge.py", "spark_orders.py"),
    "Other languages and protocols": (
        "http_api.sh", "http_queue.sh", "publish.sh", "consume.sh", "publish.c", "unix_socket.mjs", "stomp_client.py",
        "stomp_transaction.py", "stomp_two_nodes.py", "stomp_two_nodes_asyncio.py",
    ),
    "etcd": ("etcdctl_queue.sh", "cluster_request_reply.py"),
    "Operation": (
        "secure_server.sh", "metrics.py", "alerts.sh", "files_by_date.sh", "backup.sh", "export_import.sh",
    ),
}  # fmt: skip
"""Headings of the table, with the examples below them in order of reading."""

INTRODUCTION = """\
Each program shows one feature and has about 60 lines at most. The commands that run it are at its top. Run them from
the root of a clone. A test runs each of them and compares its output.

An example without a need runs on the base install (`pip install yirangmq`) with a store of its own. *A server* is
`yirangmq serve`, started in the same folder. The addresses `sqlite:demo.db` and `unix:yirang-data/yirangmq.sock` may be
exchanged where an example says so.
"""


class Header(NamedTuple):
    """The header of an example: its docstring or first comment.

    The first paragraph names the feature. The indented lines are the commands, from the root of the repository; ``&``
    at the end of a line marks a process that stays."""

    feature: str
    commands: tuple[str, ...]
    needs: str


def example_files() -> list[Path]:
    return sorted(path for path in EXAMPLES.iterdir() if path.is_file() and path != README)


def read_header(path: Path) -> Header:
    text = _header_text(path)
    feature = " ".join(text.split("\n\n")[0].split())
    joined = text.replace("\\\n", "")
    commands = tuple(" ".join(line.split()) for line in joined.splitlines() if line.startswith("    "))
    return Header(feature, commands, _needs(text, commands))


def _header_text(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text), clean=False) or ""
    if path.suffix == ".sh":
        lines = re.match(r"#!/bin/sh\n((?:#.*\n)+)", text)
        assert lines is not None, path
        return "\n".join(line.removeprefix("#")[1:].replace("  ", "    ", 1) for line in lines[1].splitlines())
    block = re.match(r"/\*(.*?)\*/", text, re.DOTALL)
    assert block is not None, path
    return "\n".join(re.sub(r"^ ?\*? ?", "", line) for line in block[1].splitlines())


def _needs(text: str, commands: tuple[str, ...]) -> str:
    """Return what an example needs beside the base install."""
    needs = ["a server"] if any("yirangmq serve" in command for command in commands) else []
    needs += [f"`{word}`" for command in commands for word in re.findall(r"pip install '?([^'\s]+)", command)]
    stated = re.search(r"\bNeeds (.+?)\.(?:\s|$)", text, re.DOTALL)
    if stated:
        needs.append(" ".join(stated[1].split()))
    return ", ".join(needs) or "–"


def table(link: str) -> str:
    """Return the table; ``link`` is put before each file name."""
    parts = []
    for group, names in GROUPS.items():
        headers = {name: read_header(EXAMPLES / name) for name in names}
        rows = [f"| [{name}]({link}{name}) | {one.feature} | {one.needs} |" for name, one in headers.items()]
        parts.append("\n".join((f"## {group}\n", "| file | feature | needs |", "|---|---|---|", *rows)))
    return "\n\n".join(parts) + "\n"


def readme() -> str:
    return f"# Examples\n\n{INTRODUCTION}\n{table('')}"


def page() -> str:
    return f"# Examples\n\n{INTRODUCTION}\n{table('../../examples/')}"


if __name__ == "__main__":
    README.write_text(readme())
    PAGE.write_text(page())
