"""What a declarative pipeline consists of, and where each part of it is defined.

Knows: Spark's registry of parts. Does not know: runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yirangmq.pipeline.flows import short
from yirangmq.pipeline.session import send_modules_of

KINDS = {
    "MaterializedView": "materialized view",
    "StreamingTable": "streaming table",
    "TemporaryView": "temporary view",
    "Sink": "sink",
}


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
            super().register_sql(sql_text, file_path)

    return Noting
