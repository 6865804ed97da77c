"""Prints the table of states as a page: ``python tools/states_docs.py`` writes ``docs/states.md``."""

from pathlib import Path

from yirangmq.core.states import MEANING, TRANSITIONS, State, Verb

PAGE = Path(__file__).parents[1] / "docs" / "states.md"

WHEN: dict[Verb, str] = {
    Verb.DRAFT: "a producer asks for an id before it has the content",
    Verb.SET: "the content of a draft arrives",
    Verb.PUBLISH: "a producer puts a message in",
    Verb.POSTPONE: "a producer puts a message in with a delay, or its turn in its group comes before its time",
    Verb.REFUSE: "a message does not fit its schema when it comes in",
    Verb.RIPEN: "the delay, or the wait after a failure, is over",
    Verb.HOLD: "another message of its group is before it",
    Verb.FREE: "all of its group that came before it are done with",
    Verb.CLAIM: "a consumer claims the id, and fetches the content later",
    Verb.START: "a consumer fetches the content it has claimed",
    Verb.LEASE: "a consumer leases the message",
    Verb.EXTEND: "the consumer needs longer",
    Verb.ACK: "the consumer is done",
    Verb.RETRY: "the consumer failed, and the queue waits before it tries again",
    Verb.RELEASE: "the consumer gave it back without a wait, or its lease ran out",
    Verb.BURY: "no attempt is left, or another one cannot help, or its time to live ran out",
    Verb.PARK: "an operator sets it aside, or it would be dead but the queue has no dead letters",
    Verb.REDRIVE: "an operator sends it round again",
    Verb.DROP: "an operator drops it, it is too old, or the queue keeps no dead letters",
}

_HEAD = """# The states of a message

Printed from the table in `src/yirangmq/core/states.py` by `python tools/states_docs.py`; do not edit it by hand.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([_HEAD, *_drawing(), "", *_states(), "", *_moves(), ""])


def _drawing() -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR"]
    for (before, target), verbs in _arrows().items():
        lines.append(f"    {before or '[*]'} --> {target}: {', '.join(verbs)}")
    lines += [f"    {state} --> [*]" for state in State if not _leaving(state)]
    return [*lines, "```"]


def _arrows() -> dict[tuple[State | None, State], list[Verb]]:
    """One arrow for each pair of states, with every verb that takes it."""
    arrows: dict[tuple[State | None, State], list[Verb]] = {}
    for (before, verb), target in TRANSITIONS.items():
        arrows.setdefault((before, target), []).append(verb)
    return arrows


def _leaving(state: State) -> bool:
    return any(before is state for before, _ in TRANSITIONS)


def _states() -> list[str]:
    return ["| state | meaning |", "|---|---|", *(f"| **{state}** | {MEANING[state]} |" for state in State)]


def _moves() -> list[str]:
    rows = [f"| {before or '–'} | {verb} | {target} | {WHEN[verb]} |" for (before, verb), target in TRANSITIONS.items()]
    return ["| from | verb | to | when |", "|---|---|---|---|", *rows]


if __name__ == "__main__":
    PAGE.write_text(page())
