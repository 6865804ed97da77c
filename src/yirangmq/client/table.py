"""From a coroutine to a method that blocks, by a line of a table: with its arguments and its text. Knows: how
coroutines are run to their end. Does not know: which ones there are."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from yirangmq.client.blocking import run

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Core = TypeVar("Core")
Core_co = TypeVar("Core_co", covariant=True)


class Face(Protocol[Core_co]):
    """Something that blocks on the coroutines of its core."""

    @property
    def _core(self) -> Core_co: ...


def blocking(
    verb: Callable[Concatenate[Core, Given], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate[Face[Core], Given], Answer]:
    @wraps(verb)
    def method(face: Face[Core], /, *given: Given.args, **named: Given.kwargs) -> Answer:
        return run(verb(face._core, *given, **named))

    return method


def iterating(
    walk: Callable[Concatenate[Core, Given], AsyncGenerator[Answer, None]],
) -> Callable[Concatenate[Face[Core], Given], Iterator[Answer]]:
    @wraps(walk)
    def method(face: Face[Core], /, *given: Given.args, **named: Given.kwargs) -> Iterator[Answer]:
        steps = walk(face._core, *given, **named)
        try:
            while True:
                yield run(steps.__anext__())
        except StopAsyncIteration:
            return
        finally:
            run(steps.aclose())

    return method
