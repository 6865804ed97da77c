"""Where a frame wants to go: ``/queue/x``, ``/topic/x``, ``/temp-queue/x``; a bare ``x`` is a queue.

Knows: names. Does not know: sessions, but for the number that makes a temporary queue one's own."""

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.topic_filter import Filter, make_filter

FIELD = "destination"
TEMPORARY = "stomp-temp."
"""How the name of a queue begins that goes with its connection."""
WILD = re.compile(r"[*>]")


class Kind(Enum):
    QUEUE = "/queue/"
    TOPIC = "/topic/"
    TEMPORARY = "/temp-queue/"


class Destination(NamedTuple):
    kind: Kind
    name: str
    """Of a topic it may hold ``*`` and ``>``, where it is subscribed to."""


@lru_cache(maxsize=1024)
def parse(text: str | None) -> Destination:
    if text is None:
        raise BadInput("is missing: /queue/NAME or /topic/NAME", field=FIELD)
    for kind in Kind:
        if text.startswith(kind.value):
            return Destination(kind, text[len(kind.value) :])
    if text and "/" not in text:  # as ActiveMQ has it
        return Destination(Kind.QUEUE, text)
    raise BadInput(f"{text[:60]!r} must begin with /queue/, /topic/ or /temp-queue/", field=FIELD)


@lru_cache(maxsize=1024)
def checked(name: str) -> str:
    """The name of a queue or topic of ours."""
    if "," in name:
        raise BadInput("names several: send a frame to each", field=FIELD)
    return validation.check_queue(name, FIELD)


def temporary(session: str, name: str) -> str:
    """The queue that stands for a temporary one of this session."""
    return checked(f"{TEMPORARY}{session}.{name}")


def topic_filter(name: str) -> Filter:
    """``*`` is one level, ``>`` all that follow, as ActiveMQ has it; ``a.>`` is also ``a``."""
    if not WILD.search(name):
        return make_filter([checked(name)])
    head, levels, rest = name.partition(">")
    if rest:
        raise BadInput(f"{name[:60]!r}: '>' stands at the end", field=FIELD)
    pattern = head.replace("*", "+")
    if not levels:
        return make_filter([pattern])
    if head and not head.endswith("."):
        raise BadInput(f"{name[:60]!r}: '>' is a level of its own", field=FIELD)
    return make_filter([pattern + "*", *([pattern[:-1]] if pattern else [])])
