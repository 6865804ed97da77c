"""Pipelines tell of themselves: how far a query is, how fast, what failed. Kept in memory only, for the dashboard; a
server that starts anew hears of each again within seconds.

Knows: the last card of each. Does not know: Spark."""

from typing import Any

from yirangmq.core.ports import Clock
from yirangmq.core.validation import IDENTIFIER, check_id
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.fields import Field, Kind, choice, text, whole
from yirangmq.doors.http.v1.schemas import COUNT, INSTANT, TEXT, items, some, thing
from yirangmq.format.envelope import iso

LARGEST = 2**53
SILENT_MS = 60_000
"""A query that runs tells of itself at least every ten seconds; after this long it is lost."""
FORGOTTEN_MS = 7 * 86_400_000
MOST = 1000
"""Cards kept; the one that was silent longest makes room."""
NUMBER = whole(0, LARGEST)
STATES = ("starting", "running", "done", "stopped", "failed")
NAME = Field("id", Kind({"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}, check_id, lambda text, _: text),
             "the name of the pipeline", needed=True)  # fmt: skip
CARD = (
    Field("state", choice(*STATES), "what it does", needed=True),
    Field("kind", text(40), "process, or pipeline", "process"),
    Field("source", text(500), "what it reads", ""),
    Field("target", text(500), "what it writes", ""),
    Field("startedAt", text(40), "when it began", ""),
    Field("rows", NUMBER, "rows since it began", 0),
    Field("dead", NUMBER, "of these, to the dead letters", 0),
    Field("late", NUMBER, "rows that came too late for a window", 0),
    Field("batch", NUMBER, "the number of the last micro-batch"),
    Field("batchMs", NUMBER, "how long it took"),
    Field("rowsPerSecond", NUMBER, "how fast it was"),
    Field("position", NUMBER, "everything up to this sequence is in"),
    Field("lag", NUMBER, "sequences of the log after that"),
    Field("error", text(1000), "why it failed"),
)
SHOWN = thing(
    pipeline=TEXT,
    state={"type": "string", "enum": [*STATES, "lost"]},
    kind=TEXT,
    source=TEXT,
    target=TEXT,
    startedAt=TEXT,
    seenAt=INSTANT,
    rows=COUNT,
    dead=COUNT,
    late=COUNT,
    batch=some(COUNT),
    batchMs=some(COUNT),
    rowsPerSecond=some(COUNT),
    position=some(COUNT),
    lag=some(COUNT),
    error=some(TEXT),
)


class PipelineRoutes:
    def __init__(self) -> None:
        self._cards: dict[str, tuple[int, dict[str, Any]]] = {}
        """By name: when it was heard of, and its card; in the order of hearing."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/pipelines", "The pipelines that told of themselves within a week", self._list,
                     "pipelines", "look", thing(pipelines=items(SHOWN))),
            Endpoint("PUT", "/v1/pipelines/{id}", "A pipeline tells of itself, at least every ten seconds", self._put,
                     "pipelines", "admin", SHOWN, path_kinds=(NAME,), body=CARD),
        )  # fmt: skip

    def _put(self, ask: Ask) -> None:
        values = ask.values()
        name, now = values.pop("id"), ask.house.clock.now_ms()
        self._cards.pop(name, None)
        self._cards[name] = now, values
        while len(self._cards) > MOST:
            self._cards.pop(next(iter(self._cards)))
        ask.reply(_shown(ask.house.clock, name, now, values))

    def _list(self, ask: Ask) -> None:
        now = ask.house.clock.now_ms()
        self._cards = {name: card for name, card in self._cards.items() if now - card[0] < FORGOTTEN_MS}
        found = [_shown(ask.house.clock, name, at, values) for name, (at, values) in sorted(self._cards.items())]
        ask.reply({"pipelines": found})


def _shown(clock: Clock, name: str, at: int, values: dict[str, Any]) -> dict[str, Any]:
    is_lost = values["state"] in ("starting", "running") and clock.now_ms() - at > SILENT_MS
    card = {field.name: values.get(field.name) for field in CARD}
    return {"pipeline": name, **card, "seenAt": iso(at + clock.ahead_ms()), **({"state": "lost"} if is_lost else {})}
