"""What a declarative pipeline consists of, and where each part of it is defined.

Knows: Spark's registry of parts. Does not know: runs."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yirangmq.pipeline import faults
from yirangmq.pipeline.flows import short
from yirangmq.pipeline.session import send_modules_of

KINDS = {
    "MaterializedView": "materialized view",
    "StreamingTable": "streaming table",
    "TemporaryView": "temporary view",
    "Sink": "sink",
}


LINE = re.compile(r"\(line ([0-9]+), pos [0-9]+\)")


class InSql(Exception):
    """Of a file in SQL."""

    def __init__(self, place: str, words: str) -> None:
        super().__init__(words)
        self.place = place


@dataclass(frozen=True, slots=True)
class Element:
    """Of a pipeline: a table, a view, a sink, or a flow into one of them; ``place`` is where it is defined."""

    kind: str
    name: str
    place: str


def noting(base: Any, elements: list[Element], folder: Path) -> Any:
    """Spark's registry, that also remembers what was registered and where."""

    def place(thing: Any) -> str:
        at = thing.source_code_location
        path = Path(at.filename)
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        return f"{shown}:{at.line_number}" if at.line_number else str(shown)

    class Noting(base):  # type: ignore[misc]
        def register_output(self, output: Any) -> None:
            elements.append(Element(KINDS.get(type(output).__name__, "output"), output.name, place(output)))
            super().register_output(output)

        def register_flow(self, flow: Any) -> None:
            elements.append(Element("flow", f"{short(flow.name)} → {short(flow.target)}", place(flow)))
            send_modules_of(folder)  # its function is called now, and what it defines is sent
            super().register_flow(flow)

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            elements.append(Element("sql", file_path.stem, str(file_path)))
            try:
                super().register_sql(sql_text, file_path)
            except Exception as error:
                at = LINE.search(str(error))
                raise InSql(f"{file_path}:{at[1]}" if at else str(file_path), faults.words_of(str(error))) from None

    return Noting


def place_of(flow: str, elements: list[Element], folder: Path) -> str | None:
    """Of a flow by its name: a flow in SQL is known by the file that speaks of it."""
    for one in elements:
        if one.kind == "flow" and one.name.partition(" → ")[0] == flow:
            return one.place
    word = re.compile(rf"\b(?:VIEW|TABLE|FLOW)\s+(?:IF\s+NOT\s+EXISTS\s+)?[`\w.]*{re.escape(flow)}\b", re.IGNORECASE)
    for one in elements:
        if one.kind == "sql" and (found := word.search(text := (folder / one.place).read_text())):
            return f"{one.place}:{text.count(chr(10), 0, found.start()) + 1}"
    return None
