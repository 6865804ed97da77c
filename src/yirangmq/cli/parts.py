"""The parts of one server, once they are built: for those that tell of it, look after it, and end it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from yirangmq.admin.health import Disk
from yirangmq.admin.monitoring import Observing
from yirangmq.admin.registry import Pages
from yirangmq.admin.topics import TopicCalls
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.scheduler import Ticking
from yirangmq.cli.alerting import Alerting
from yirangmq.cli.bridging import Bridging
from yirangmq.cli.entrance import Entrance
from yirangmq.config.config import Config
from yirangmq.core.ports import Store
from yirangmq.observe.event_loop import LoopWatchdog
from yirangmq.protocols.context import House, Refusals
from yirangmq.topics.publisher import Publisher
from yirangmq.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from yirangmq.cli.clusterway import ClusterWay
    from yirangmq.cli.dayway import DayWay
    from yirangmq.cli.pairway import PairWay


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    config: Config
    store: Store
    started: float
    """On the monotonic clock."""
    desk: Desk
    pages: Pages
    ticking: Ticking
    observing: Observing
    topics: Publisher | None
    topic_calls: TopicCalls
    bridging: Bridging
    webhooks: Webhooks
    refusals: Refusals
    house: House
    entrance: Entrance
    alerting: Alerting
    disk: Disk | None
    """Not every store lies on one."""
    pair: "PairWay | None"
    cluster: "ClusterWay | None"
    day_files: "DayWay | None"
    watchdog: LoopWatchdog
