"""What the jobs of ``pipeline`` share: options, and rows as tables."""

import argparse
from typing import TYPE_CHECKING, Any

from yirangmq.cli import sparkwork
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 20


def common(parser: argparse.ArgumentParser, *, broker: bool = True) -> None:
    if broker:
        sparkwork.reach_options(parser)
    sparkwork.spark_options(parser)


def source(parser: argparse.ArgumentParser, about: str, *, needed: bool = True, default: str | None = None) -> None:
    parser.add_argument("--from", dest="source", metavar="PLACE", required=needed, default=default, help=about)


def values(frame: "DataFrame") -> list[dict[str, Any]]:
    from yirangmq.pipeline.jobs.report import values

    return values({"": frame})[""]


def table(screen: Screen, rows: list[dict[str, Any]]) -> None:
    if not rows:
        screen.say("(nothing)")
        return
    numeric = {name for name in rows[0] if all(isinstance(row[name], int | float | None) for row in rows)}
    columns = [Column(name, right=name in numeric, shrinks=name not in numeric) for name in rows[0]]
    screen.table(columns, [[_cell(value) for value in row.values()] for row in rows[:SHOWN]])
    if len(rows) > SHOWN:
        screen.say(f"… and {len(rows) - SHOWN:,} more; --json has all")


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return ", ".join(str(one) for one in value) if isinstance(value, list) else value
