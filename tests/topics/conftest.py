from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.topic_pipes import SMALL, MakeStage, Stage, small
from yirangmq.fsio.disk import Disk
from yirangmq.stores.log.log import LogSettings
from yirangmq.topics.ports import Settings


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    """A feed that turns when told; closed after the test."""
    made: list[Stage] = []

    def make(settings: Settings | None = None, log: LogSettings = SMALL, disk: Disk | None = None) -> Stage:
        made.append(Stage(tmp_path / "topics", settings or small(), log, disk))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage()
