"""Scenes, each on a stage of its own."""

from typing import Any

import pytest

from tests.protocols.http.mq.parts import Play, Scene, staged
from tests.support.loops import run_loop


@pytest.fixture
def play() -> Play:
    """``play(scene, store=…, defaults=…, terms=…)``: the scene, from its beginning to its end."""

    def whole(scene: Scene, **given: Any) -> None:
        async def main() -> None:
            async with staged(**given) as stage:
                await scene(stage)

        run_loop(main())

    return whole
