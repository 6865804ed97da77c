"""STOMP clients as operators see them: on the roster of consumers, and in the list of connections.

Knows: cards and wishes. Does not know: where the roster is kept."""

from typing import TYPE_CHECKING, Any

from yirangmq.core.consumer_registry import ConsumerState
from yirangmq.core.errors import QueueError

if TYPE_CHECKING:
    from yirangmq.doors.stomp.session import StompSession

TELL_SECONDS = 2.0


def begin_presence(session: "StompSession") -> None:
    """It has subscribed for the first time: from now on the roster hears of it."""
    session.started_at = session.house.clock.now_ms()
    _tell(session)


def _tell(session: "StompSession") -> None:
    if session.closed:
        return
    state = ConsumerState.PAUSED if session.is_paused else ConsumerState.RUNNING
    _beat(session, session.wish if session.wish == ConsumerState.DRAINING else state)
    for following in session.followings.values():
        following.look()
    session.house.desk.later(TELL_SECONDS, lambda: _tell(session))


def ended(session: "StompSession") -> None:
    if session.started_at:
        _beat(session, ConsumerState.STOPPED)


def _beat(session: "StompSession", state: str) -> None:
    holdings = session.holdings
    card = {
        "consumerId": session.roster_name,
        "host": session.peer(),
        "pid": 0,
        "queues": sorted({taker.window.queue for taker in holdings.takers.values()}),
        "startedAt": session.started_at,
        "state": str(state),
        "inWork": holdings.unsettled,
        "done": session.settled["ack"],
        "failed": session.settled["nack"],
    }
    try:
        beat = session.house.methods.find("consumer_beat")
    except QueueError:  # a server that keeps no roster
        return
    beat(session.house.desk, card, lambda wish, error: _follow_wish(session, wish or ""))


def _follow_wish(session: "StompSession", wish: str) -> None:
    """Pause and drain: nothing more is pushed. Drain cannot be taken back, and its client goes when it wants."""
    if wish == "drain":
        session.wish = str(ConsumerState.DRAINING)
        session.is_paused = True
    elif wish == "pause":
        session.is_paused = True
    elif wish == "resume" and session.wish != ConsumerState.DRAINING:
        session.is_paused = False
        session.wake()


def subscriptions(session: "StompSession") -> list[dict[str, Any]]:
    queues = [{**one.window.describe(), "credit": one.credit} for one in session.holdings.takers.values()]
    topics = [
        {"topic": one.terms.filter.text, "name": one.terms.name, "credit": one.terms.credit, "unsettled": one.unsettled}
        for one in session.followings.values()
    ]
    return queues + topics
