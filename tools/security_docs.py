"""Prints the tables of verbs and scopes into ``docs/security.md``, from ``core.access`` and the tables of the
protocols: ``python tools/security_docs.py`` writes them, a test sees that they are current."""

from pathlib import Path

from yirangmq.admin.registry import METHODS, MethodRegistry
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.core.access import ALLOWED, SCOPES, VERBS
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.http.auth import HttpAccess
from yirangmq.protocols.http.mq.api import MqApi, MqSettings
from yirangmq.protocols.http.static import VERBS as PAGES
from yirangmq.protocols.http.v1.api import NativeApi
from yirangmq.protocols.native.session import FRAMES
from yirangmq.protocols.stomp.commands import COMMANDS
from yirangmq.stores.memory import MemoryStore
from yirangmq.wire.frames import FrameKind

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
BEGIN, END = "<!-- verbs and scopes: printed by tools/security_docs.py -->\n", "<!-- end of verbs and scopes -->\n"


def render() -> str:
    return "\n".join([*_matrix(), "", *_rows(), ""])


def page(text: str) -> str:
    """The page with the section as it is now."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + render() + "\n" + END + rest.split(END)[1]


def _matrix() -> list[str]:
    lines = [f"| verb | {' | '.join(f'`{scope}`' for scope in SCOPES)} | what it is |"]
    lines.append(f"|---|{'---|' * (len(SCOPES) + 1)}")
    for verb, about in VERBS.items():
        cells = ["yes" if scope in ALLOWED[verb] else "–" for scope in SCOPES]
        lines.append(f"| {verb} | {' | '.join(cells)} | {about} |")
    return lines


def _rows() -> list[str]:
    """Every route, frame, method and command, by its verb."""
    house = _house()
    routes = [(one.verb, f"{one.method} {one.path}") for one in NativeApi(house).table.endpoints]
    routes += [
        (verb, f"{method} {path}") for method, path, verb in MqApi(house, HttpAccess(), MqSettings()).routes if verb
    ]
    routes += [(verb, f"GET {path}") for path, verb in PAGES.items() if verb]
    frames = [(verb, FrameKind(kind).name) for kind, verb in FRAMES.items() if kind != FrameKind.CALL]
    methods = [(verb, name) for name, (verb, _) in METHODS.items()]
    commands = [(verb, name) for name, verb in COMMANDS.items()]
    lines = ["| verb | HTTP | socket: frames | socket: methods of `CALL` | STOMP |", "|---|---|---|---|---|"]
    for verb in VERBS:
        cells = [_cell(verb, one) for one in (routes, frames, methods, commands)]
        lines.append(f"| {verb} | {' | '.join(cells)} |")
    return lines


def _cell(verb: str, rows: list[tuple[str, str]]) -> str:
    return ", ".join(f"`{name}`" for name in sorted({name for its, name in rows if its == verb})) or "–"


def _house() -> ServerContext:
    clock, ids = SystemClock(), TimeOrderedIds()
    broker_context = TransactionContext(clock, ids)
    desk = GroupCommitter(MemoryStore(), broker_context, clock, lambda call: None, lambda seconds, call: None)
    return ServerContext(
        desk, clock, ids, MethodRegistry(broker_context), ServerIdentity("yirangmq 0", "", "", 1 << 20)
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
