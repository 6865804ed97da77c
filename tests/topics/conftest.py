from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.topic_pipes import SMALL, MakePublisherHarness, PublisherHarness, small
from yirangmq.fsio.disk import Disk
from yirangmq.stores.log.log import LogSettings
from yirangmq.topics.ports import TopicSettings


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakePublisherHarness]:
    """A feed that turns when told; closed after the test."""
    made: list[PublisherHarness] = []

    def make(
        settings: TopicSettings | None = None,
        log: LogSettings = SMALL,
        disk: Disk | None = None,
        on_loss: Callable[[str], None] | None = None,
    ) -> PublisherHarness:
        made.append(PublisherHarness(tmp_path / "topics", settings or small(), log, disk, on_loss))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


@pytest.fixture
def stage(make_stage: MakePublisherHarness) -> PublisherHarness:
    return make_stage()
