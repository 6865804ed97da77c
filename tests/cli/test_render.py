"""Tables: aligned, cut to the screen, and never driven by what they show."""

import pytest

from yirangmq.cli.arguments import format_duration
from yirangmq.cli.table import TableColumn, cut, measure, render, safe

COLUMNS = (TableColumn("name", shrinks=True), TableColumn("count", right=True), TableColumn("text", shrinks=True))


def test_cli_table_columns_are_aligned() -> None:
    rows = [("a", 1, "x"), ("long name", 1000, None)]
    assert list(render(COLUMNS, rows, None)) == [
        "name       count  text",
        "a              1  x",
        "long name   1000  -",
    ]


def test_cli_table_wide_characters_take_two_columns() -> None:
    rows = [("이랑", 1, "x"), ("e\u0301", 2, "y")]
    lines = list(render(COLUMNS, rows, None))
    assert [measure(line) for line in lines] == [17, 14, 14]


def test_cli_table_on_a_narrow_screen_cuts_the_widest_columns_first() -> None:
    rows = [("a" * 30, 1, "b" * 60)]
    title, line = render(COLUMNS, rows, 60)
    assert measure(line) == 60
    assert line == f"{'a' * 24}…      1  {'b' * 25}…"
    assert title.startswith("name")


def test_cli_table_on_a_very_narrow_screen_keeps_a_minimum_column_width() -> None:
    rows = [("a" * 30, 1, "b" * 60)]
    assert [measure(line) for line in render(COLUMNS, rows, 3)][1] == 8 + 2 + 5 + 2 + 8


@pytest.mark.parametrize(
    ("text", "shown"), [("plain", "plain"), ("\x1b[31m", "\\x1b[31m"), ("a\nb", "a\\nb"), ("\u202e", "\\u202e")]
)
def test_cli_table_control_characters_are_shown_escaped(text: str, shown: str) -> None:
    assert safe(text) == shown
    assert list(render((TableColumn("x"),), [(text,)], None))[1] == shown


def test_cli_text_cut_to_a_width_ends_with_an_ellipsis_and_counts_wide_characters_twice() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"
    assert cut("이랑이랑", 4) == "이…"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, None), (0.4, "0s"), (59, "59s"), (61, "1m 1s"), (3700, "1h 1m"), (90_000, "1d 1h")]
)
def test_cli_duration_is_shown_in_its_two_largest_units(seconds: float | None, text: str | None) -> None:
    assert format_duration(seconds) == text
