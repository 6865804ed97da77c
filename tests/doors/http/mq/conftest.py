"""Scenes, each on a stage of its own."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.doors.http.mq.parts import Scene, staged
from tests.support.loops import run_loop

Play = Callable[..., None]


@pytest.fixture
def play() -> Play:
    """``play(scene, store=…, defaults=…, terms=…)``: the scene, from its beginning to its end."""

    def whole(scene: Scene, **given: Any) -> None:
        async def main() -> None:
            async with staged(**given) as stage:
                await scene(stage)

        run_loop(main())

    return whole
