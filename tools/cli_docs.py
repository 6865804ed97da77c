"""Prints ``docs/cli.md`` and the pages of ``docs/cli`` from the parsers; a test compares them with the program.

Made from the actions, not from ``--help``, whose layout differs between versions of Python."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from yirangmq.cli import main, output
from yirangmq.cli.command import PAGE, Command, name_pages
from yirangmq.core.errors import every_error

DOCS = Path(__file__).parents[1] / "docs"
APART = ("policy", "cluster", "pipeline")
"""Commands with a page of their own, so that no page has more than 500 lines."""
INTRO = """# The command line

Every command works on a store directly, without a server; several processes may do so at the same time. If a server
(`yirangmq serve`) holds the store, a command finds the server and uses it. When a command that changes something
returns, the change is on disk.

*This page is printed from the program by `python tools/cli_docs.py`.*

## The queue and the number of rows

Every command that works on a queue takes its name as an argument or with `-q` or `--queue`: `yirangmq peek mail` and
`yirangmq peek --queue mail` are the same. Two different names are an error. `ack`, `nack` and `extend` take lease ids,
which name the message, and no queue. Options follow the command. `--limit N` is the maximum number of
messages, rows or lines in every command that has such a maximum; `--max` of `consume` is another name of it.

## Which store

| option | environment | meaning |
|---|---|---|
| `--backend sqlite` | | one SQLite file; the default |
| `--backend fs` | | a folder of JSON files |
| `--db FILE` | `YIRANGMQ_DB` | the SQLite file, by default `./yirang-data/queue.db`; implies `--backend sqlite` |
| `--path FOLDER` | `YIRANGMQ_PATH` | the folder, by default `./yirang-queues`; implies `--backend fs` |
| `--store URL` | `YIRANGMQ_STORE` | `sqlite:FILE`, `files:FOLDER`, or a server: `unix:PATH`, `tcp://HOST:PORT` |
| `--direct` | `YIRANGMQ_DIRECT=1` | open the store itself, even if a server holds it |
| | `YIRANGMQ_TOKEN` | the token that a server over TCP requires |
| `--durability full` | | the default: a confirmed change survives a power cut |
| `--durability os` | | faster: a confirmed change survives a killed process, not a power cut |

An option has precedence over the environment. Without either, commands and `yirangmq serve` use one default store,
`yirang-data/queue.db` in the working folder; `YIRANGMQ_DATA` names another folder than `yirang-data`. A server
therefore serves the messages that a command published before it was started. Earlier versions of the commands used
`./yirang.db`. Such a file is used as long as `yirang-data/queue.db` does not exist. After that, each command reports in
a note that the file is not used, `status --json` names it in `unusedStore`, and `serve` logs `former_store_unused`.
Move its messages with `yirangmq export old.jsonl --db yirang.db` and `yirangmq import old.jsonl`.

A command that changes something creates a missing store, with its folder. A command that only reads treats a missing
store as empty and creates nothing. `ack`, `nack`, `extend`, `drop`, `check`, `repair` and `export` require a store.

## Output

Results go to stdout, notes and errors to stderr. By default the output is text and tables. With `--json`, which every
command has, it is one JSON document per line, without notes. Commands that list messages (`consume`, `peek`,
`dlq list`) print one document per message; `show` and `dlq show` print the document of the message; all others print
exactly one document with `"ok": true`. `ack`, `nack` and `extend` print one also if a lease was rejected: it then has
`"ok": false`, and the result of each lease in `results`.

Tables fit the terminal: columns without content are left out, then columns of lower priority, and long texts are
shortened. Ids and names are never shortened; a very long name gets a line of its own. Times are relative to now.
Colours are shown on a terminal only, and not if `NO_COLOR` is set. In a pipe or a file, a table has all columns, whole
texts and times in UTC. Work that takes more than half a second shows its progress on stderr if that is a terminal,
with rate and remaining time where they are known.

An error is one line on stderr, `yirangmq: CODE: TEXT` (a bad filter adds two that show the position); with `--json` it
is `{"ok": false, "code": …, "error": …, "field": …}`, also on stderr. `field` names the wrong part of the input, or is
null. `ack`, `nack` and `extend` print one such error for each rejected lease.

Every command that moves or deletes many messages has `--dry-run`: it reports what would happen and changes nothing.
The document of `--json` then has `"dryRun": true`, and `did` is what the command would have done. `did` of
`dlq redrive` is `requeued`.

## Exit codes
"""


def render() -> dict[str, str]:
    """All pages by their names below ``docs``: the overview, and one page for each group of commands."""
    parsers = dict(_inner(main.build()))
    pages = {"cli.md": "".join([INTRO, *_exit_codes(), "\n## Commands\n", *_summary(), *_contents()])}
    for title, page, names in _pages():
        parts = [f"# Commands: {title}\n\n*Printed from the program by `python tools/cli_docs.py`.*\n"]
        parts.append("The [overview](../cli.md) has what all commands share: stores, output, exit codes.\n")
        for name in names:
            parts.extend(_command(f"yirangmq {name}", main.load(name), parsers[name], 2))
        pages[f"cli/{page}.md"] = "".join(parts)
    return pages


def _pages() -> Iterator[tuple[str, str, list[str]]]:
    """Yield title, file name and commands of each page. Commands of ``APART`` have pages of their own."""
    for group, commands in main.COMMAND_GROUPS.items():
        rest = [name for name in commands if name not in APART]
        if rest:
            yield group, group.replace(" ", "-"), rest
        yield from ((f"`{name}`", name, [name]) for name in commands if name in APART)


def _exit_codes() -> Iterator[str]:
    yield "\n| exit | meaning | error codes |\n|---|---|---|\n"
    for code, meaning in output.EXIT_MEANINGS.items():
        errors = [f"`{kind.code}`" for kind in every_error() if output.exit_code(kind.code) == code]
        yield f"| {code} | {_cell(meaning)} | {', '.join(errors)} |\n"


def _summary() -> Iterator[str]:
    places = {name: page for _, page, names in _pages() for name in names}
    for group, commands in main.COMMAND_GROUPS.items():
        yield f"\n### {group[0].upper()}{group[1:]}\n\n| command | |\n|---|---|\n"
        for name, (_, summary) in commands.items():
            yield f"| [`{name}`](cli/{places[name]}.md#yirangmq-{name}) | {summary} |\n"


def _contents() -> Iterator[str]:
    yield "\n```{toctree}\n:hidden:\n\n"
    yield from (f"{title.replace('`', '')} <cli/{page}>\n" for title, page, _ in _pages())
    yield "```\n"


def _inner(made: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _command(name: str, command: Command, made: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"\n{'#' * level} {name}\n\n{_link_pages(command.about)}\n"
    yield from _options(made)
    if not command.subcommands:
        yield "\n```sh\n"
        for what, line in command.examples:
            yield f"# {what}\n{line}\n"
        yield "```\n"
    for verb, inner in _inner(made):
        yield from _command(f"{name} {verb}", command.subcommands[verb][1], inner, level + 1)


def _options(made: argparse.ArgumentParser) -> Iterator[str]:
    rows = []
    takes_store = False
    for group in made._action_groups:
        if group.title == "store":
            takes_store = True
            continue
        for action in group._group_actions:
            if action.dest not in ("help", "json") and not isinstance(action, argparse._SubParsersAction):
                rows.append(f"| {_spelled(action)} | {_help(action)} |\n")
    if rows:
        yield "\n| option | |\n|---|---|\n" + "".join(rows)
    if takes_store:
        yield "\nAnd [which store](../cli.md#which-store).\n"


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        dots = " …" if action.nargs in ("+", "*") else ""
        return f"`{action.metavar or _choices(action)}{dots}`"
    value = "" if action.nargs == 0 else f" {action.metavar or _choices(action)}"
    needed = " (needed)" if action.required else ""
    return ", ".join(f"`{option}{value}`" for option in action.option_strings) + needed


def _choices(action: argparse.Action) -> str:
    return "\\|".join(map(str, action.choices)) if action.choices is not None else action.dest.upper()


def _help(action: argparse.Action) -> str:
    return _cell(name_pages(action.help or "").replace("%(default)s", str(action.default)))


def _link_pages(text: str) -> str:
    return PAGE.sub(r"[\1](../\1.md)", text)


def _cell(text: str) -> str:
    text = re.sub(r"'yirangmq docs ([\w/-]+)'", r"[\1](../\1.md)", text)
    return text.replace("|", "\\|")


def write() -> None:
    for old in (DOCS / "cli").glob("*.md"):
        old.unlink()
    (DOCS / "cli").mkdir(exist_ok=True)
    for name, text in render().items():
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    write()
