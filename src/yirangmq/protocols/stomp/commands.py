"""STOMP commands: what each client frame does, access control, and STOMP clients in the consumer registry.

A command that is refused raises; the session sends the error and closes. SUBSCRIBE options that would change what is
delivered and are not implemented, such as selectors, are refused, not ignored.

The token is the header ``passcode``, or ``login`` without one; tokens, programs, scopes and queues are those of HTTP. A
server without tokens is open to every client that can reach it.

From its first subscription on, the session reports the client to the consumer registry every ``REPORT_SECONDS``, and
obeys pause, resume and drain. Drain is final: nothing more is pushed until the client disconnects."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.core import validation
from yirangmq.core.access import CONSUME, GREET, PUBLISH, AccessGrant
from yirangmq.core.consumer_registry import ConsumerState
from yirangmq.core.errors import BadInput, NotFound, QueueError, UnknownClient
from yirangmq.core.message import Reason
from yirangmq.core.transitions import Cause
from yirangmq.protocols import context
from yirangmq.protocols.context import WrongTokenLimiter
from yirangmq.protocols.stomp import codec
from yirangmq.protocols.stomp.codec import Destination, DestinationKind
from yirangmq.protocols.stomp.queue_subscriptions import (
    CONSUMERS,
    MAX_PREFETCH,
    PREFETCH,
    AckMode,
    StompQueueSubscription,
)
from yirangmq.protocols.stomp.topic_hub import StompTopicOptions, SubscriptionCallbacks
from yirangmq.protocols.stomp.transactions import Receipt
from yirangmq.topics.publisher import Publisher
from yirangmq.wire.stomp import V10, V12, VERSIONS, escape

if TYPE_CHECKING:
    from yirangmq.protocols.stomp.session import StompSession


# -- access control ----------------------------------------------------------------------------------------------------


class StompAccess:
    """Access control of STOMP clients: tokens, and the delay after wrong tokens."""

    def __init__(self, grants: Iterable[AccessGrant] = (), attempts: WrongTokenLimiter | None = None) -> None:
        self._authenticator = context.Authenticator(grants, attempts)

    @property
    def is_open(self) -> bool:
        return self._authenticator.is_open

    def delay(self, login: str, passcode: str, address: str) -> float:
        """Return the delay in seconds before these credentials may be checked."""
        return self._authenticator.delay(passcode or login, address)

    def wait(self, seconds: float, act: Callable[[], None]) -> None:
        self._authenticator.wait(seconds, act)

    def grant(self, login: str, passcode: str, address: str = "") -> AccessGrant | None:
        """Return the grant of these credentials, or None if the server has no tokens and allows everything.

        Only one secret is checked, the same as in ``delay``. Otherwise a client with one valid token could guess others
        in the second header without a delay."""
        if self._authenticator.is_open:
            return None
        found = self._authenticator.find(passcode or login, address)
        if found is None:
            raise UnknownClient("CONNECT with a token of this server as the header passcode", field="passcode")
        return found


COMMANDS: dict[str, str] = {
    "CONNECT": GREET,
    "STOMP": GREET,
    "SEND": PUBLISH,
    "SUBSCRIBE": CONSUME,
    "UNSUBSCRIBE": GREET,
    "ACK": CONSUME,
    "NACK": CONSUME,
    "BEGIN": GREET,
    "COMMIT": GREET,
    "ABORT": GREET,
    "DISCONNECT": GREET,
}
"""Verb of each command in the access table of ``core.access``. UNSUBSCRIBE only ends subscriptions of the same
connection; the frames of a transaction were checked one by one."""


def check(grant: AccessGrant | None, command: str, name: str) -> None:
    context.check(grant, COMMANDS[command], name, "passcode")


# -- consumer registry -------------------------------------------------------------------------------------------------

REPORT_SECONDS = 2.0


def start_reporting(session: "StompSession") -> None:
    """Start to report a session to the consumer registry, at its first subscription."""
    session.started_at = session.context.clock.now_ms()
    _report(session)


def _report(session: "StompSession") -> None:
    if session.closed:
        return
    state = ConsumerState.PAUSED if session.is_paused else ConsumerState.RUNNING
    _send_heartbeat(session, session.wish if session.wish == ConsumerState.DRAINING else state)
    for subscription in session.topic_subscriptions.values():
        subscription.refresh_cursor()
    session.context.committer.later(REPORT_SECONDS, lambda: _report(session))


def report_stopped(session: "StompSession") -> None:
    if session.started_at:
        _send_heartbeat(session, ConsumerState.STOPPED)


def _send_heartbeat(session: "StompSession", state: str) -> None:
    queue_leases = session.queue_leases
    row = {
        "consumerId": session.registry_name,
        "host": session.peer(),
        "pid": 0,
        "queues": sorted({subscription.window.queue for subscription in queue_leases.subscriptions.values()}),
        "startedAt": session.started_at,
        "state": str(state),
        "inWork": queue_leases.unsettled,
        "done": session.settled["ack"],
        "failed": session.settled["nack"],
    }
    try:
        heartbeat = session.context.methods.find("consumer_beat")
    except QueueError:  # this server has no consumer registry
        return
    heartbeat(session.context.committer, row, lambda wish, error: _apply_request(session, wish or ""))


def _apply_request(session: "StompSession", wish: str) -> None:
    """Apply an operator's request. Pause and drain stop pushing; after drain, resume has no effect."""
    if wish == "drain":
        session.wish = str(ConsumerState.DRAINING)
        session.is_paused = True
    elif wish == "pause":
        session.is_paused = True
    elif wish == "resume" and session.wish != ConsumerState.DRAINING:
        session.is_paused = False
        session.wake()


def describe_subscriptions(session: "StompSession") -> list[dict[str, Any]]:
    queues = [{**one.window.describe(), "credit": one.credit} for one in session.queue_leases.subscriptions.values()]
    topics = [
        {
            "topic": one.options.filter.text,
            "name": one.options.name,
            "credit": one.options.credit,
            "unsettled": one.unsettled,
        }
        for one in session.topic_subscriptions.values()
    ]
    return queues + topics


# -- commands ----------------------------------------------------------------------------------------------------------

Headers = dict[str, str]
CONNECT_COMMANDS = ("CONNECT", "STOMP")
MOST_SUBSCRIPTIONS = 64
REFUSED_HEADERS = {
    "selector": "is not supported: use a queue of its own for messages that are consumed separately",
    "activemq.exclusive": "is not known here: JMSXGroupID keeps messages of a group in order",
    "activemq.retroactive": "is not supported: a durable subscription gets the records that it missed",
    "activemq.noLocal": "is not known here: subscribe to what others send to",
    "no-local": "is not known here: subscribe to what others send to",
}
"""SUBSCRIBE headers that would change what is delivered. They are refused, because a client relies on them."""
DURABLE_NAMES = ("activemq.subscriptionName", "durable-subscription-name")
NACKED = Cause(Reason.HANDLER_ERROR, "nacked over STOMP")


# -- connect and disconnect --------------------------------------------------------------------------------------------


def connect(session: "StompSession", headers: Headers, body: bytes) -> None:
    if session.is_authenticated:
        raise BadInput("this connection is connected already", field="command")
    offered = [one.strip() for one in headers.get("accept-version", V10).split(",")]
    known = [version for version in VERSIONS if version in offered]
    if not known:
        error = BadInput(
            f"none of {', '.join(offered)[:60]} is spoken here; offer 1.0, 1.1 or 1.2", field="accept-version"
        )
        session.fail(error, version=",".join(VERSIONS))
        return
    intervals = codec.read(headers.get("heart-beat"))
    shown = headers.get("login", ""), headers.get("passcode", ""), session.peer()
    delay = session.stomp_context.access.delay(*shown)
    if delay and not session.was_delayed:
        session.delay_connect(delay, lambda: connect(session, headers, body))
        return
    session.grant = session.stomp_context.access.grant(*shown)
    client = headers.get("client-id", "")
    session.client = client[:64]
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in client)
    session.queue_leases.consumer = f"{CONSUMERS}{plain[:40] or session.number}"
    session.registry_name = (
        f"{session.queue_leases.consumer}:{session.number}" if plain else session.queue_leases.consumer
    )
    session.on_connected(known[-1], intervals)
    reply_headers = {"version": known[-1], "session": session.name, "server": session.stomp_context.server}
    session.send_frame("CONNECTED", {**reply_headers, "heart-beat": codec.shown(intervals)})


def disconnect(session: "StompSession", headers: Headers, body: bytes) -> None:
    _done(session, headers)
    session.disconnect()


# -- send --------------------------------------------------------------------------------------------------------------


def send(session: "StompSession", headers: Headers, body: bytes) -> None:
    kind, name = codec.parse(headers.get("destination"))
    receipt, transaction = headers.get("receipt"), headers.get("transaction")
    session.context.check_capacity()
    if headers.get("reply-to", "").startswith(DestinationKind.TEMPORARY.value):
        reply = headers["reply-to"].removeprefix(DestinationKind.TEMPORARY.value)
        headers = {**headers, "reply-to": f"/queue/{codec.temporary(session.name, reply)}"}
    if kind is DestinationKind.TOPIC:
        _send_record(session, codec.checked(name), headers, body)
        return
    queue = _queue(session, kind, name)
    check(session.grant, "SEND", queue)
    envelope = codec.envelope(queue, session.new_id(), headers, body, session.context.clock.now_ms())
    if transaction is None:
        session.batch.send(envelope, receipt)
    else:
        session.transactions.add(transaction, envelope)
        _confirm(session, receipt)


def _send_record(session: "StompSession", topic: str, headers: Headers, body: bytes) -> None:
    topics_of(session)
    check(session.grant, "SEND", topic)
    record = codec.record(topic, headers, body)
    transaction = headers.get("transaction")
    if transaction is None:
        session.records.append((record, headers.get("receipt")))
    else:
        session.transactions.add(transaction, record)
        _done(session, headers)


def topics_of(session: "StompSession") -> Publisher:
    topics = session.stomp_context.hub.topics
    if topics is None:
        raise BadInput("this server has no topics", field="destination")
    return topics


def _queue(session: "StompSession", kind: DestinationKind, name: str) -> str:
    if kind is DestinationKind.TEMPORARY:
        return codec.temporary(session.name, name)
    return codec.checked(name)


def _done(session: "StompSession", headers: Headers) -> None:
    _confirm(session, headers.get("receipt"))


def _confirm(session: "StompSession", receipt: Receipt) -> None:
    if receipt is not None:
        session.batch.receipts.append(receipt)


# -- subscribe and settle ----------------------------------------------------------------------------------------------


def subscribe(session: "StompSession", headers: Headers, body: bytes) -> None:
    destination = codec.parse(headers.get("destination"))
    id = headers.get("id")
    if id is None and session.version != V10:
        raise BadInput("is missing: SUBSCRIBE needs an id", field="id")
    name = headers["destination"] if id is None else id
    if name in session.queue_leases.subscriptions or name in session.topic_subscriptions:
        raise BadInput(f"{name[:60]!r} is subscribed already", field="id")
    if len(session.queue_leases.subscriptions) + len(session.topic_subscriptions) >= MOST_SUBSCRIPTIONS:
        raise BadInput(f"{MOST_SUBSCRIPTIONS} subscriptions in one connection; open another one", field="id")
    for header, says in REFUSED_HEADERS.items():
        if headers.get(header, "false") not in ("false", ""):
            raise BadInput(says, field=header)
    mode, credit = _mode(headers), _prefetch(headers)
    address = codec.MessageAddress(session.version, id, mode is not AckMode.AUTO)
    if destination.kind is DestinationKind.TOPIC:
        _subscribe_topic(
            session,
            name,
            destination,
            StompTopicOptions(_NO_TOPICS, mode, credit, address, _durable(session, headers)),
            headers,
        )
    else:
        queue = _queue(session, *destination)
        check(session.grant, "SUBSCRIBE", queue)
        if destination.kind is DestinationKind.TEMPORARY:
            session.temporary.add(queue)
        shown = escape(destination.kind.value + destination.name, session.version)
        session.queue_leases.subscribe(
            name, StompQueueSubscription(queue, shown, mode, credit, address, session.queue_leases)
        )
        _done(session, headers)
    if not session.started_at:
        start_reporting(session)


_NO_TOPICS = codec.topic_filter("none")


def _subscribe_topic(
    session: "StompSession", name: str, destination: Destination, options: StompTopicOptions, headers: Headers
) -> None:
    from yirangmq.protocols.stomp.topic_subscriptions import (
        StompTopicSubscription,  # loaded for the first topic subscription
    )

    topics = topics_of(session)
    check(session.grant, "SUBSCRIBE", destination.name)
    options = options._replace(filter=codec.topic_filter(destination.name))
    client = SubscriptionCallbacks(session.push, session.has_capacity, session.fail)
    subscription = StompTopicSubscription(topics, options, client)
    session.topic_subscriptions[name] = subscription
    receipt = headers.get("receipt")
    session.run_operation([] if receipt is None else [receipt], subscription.begin)
    session.stomp_context.hub.add(subscription)


def _durable(session: "StompSession", headers: Headers) -> str:
    given = next((headers[name] for name in DURABLE_NAMES if headers.get(name)), "")
    if not given:
        return ""
    if not session.client:
        raise BadInput("is missing: a durable subscription needs it in CONNECT", field="client-id")
    return validation.check_consumer(f"{session.client}:{given}", DURABLE_NAMES[0])


def _mode(headers: Headers) -> AckMode:
    try:
        return AckMode(headers.get("ack", "auto"))
    except ValueError:
        raise BadInput(f"{headers['ack'][:40]!r} is not one of {', '.join(AckMode)}", field="ack") from None


def _prefetch(headers: Headers) -> int:
    text = headers.get("activemq.prefetchSize", str(PREFETCH))
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= 1):
        raise BadInput(f"must be a whole number from 1, not {text[:40]!r}", field="activemq.prefetchSize")
    return min(int(text), MAX_PREFETCH)


def unsubscribe(session: "StompSession", headers: Headers, body: bytes) -> None:
    name = headers.get("id", headers.get("destination") if session.version == V10 else None)
    if name is None:
        raise BadInput("is missing: use the id of the SUBSCRIBE", field="id")
    subscription = session.topic_subscriptions.pop(name, None)
    if subscription is not None:
        subscription.close()
        session.stomp_context.hub.remove(subscription)
        receipt = headers.get("receipt")
        if subscription.options.name and any(headers.get(one) for one in DURABLE_NAMES):
            session.run_operation([] if receipt is None else [receipt], subscription.forget)
            return
    elif not session.queue_leases.unsubscribe(name):
        raise NotFound(f"there is no subscription {name[:60]!r}", field="id")
    _done(session, headers)


def ack(session: "StompSession", headers: Headers, body: bytes) -> None:
    _settle(session, headers, None)


def nack(session: "StompSession", headers: Headers, body: bytes) -> None:
    if session.version == V10:
        raise BadInput("NACK is not in STOMP 1.0", field="command")
    _settle(session, headers, NACKED)


def _settle(session: "StompSession", headers: Headers, cause: Cause | None) -> None:
    header = "id" if session.version == V12 else "message-id"
    id = headers.get(header)
    if id is None:
        raise BadInput("is missing: use the value of MESSAGE in " + ("ack" if header == "id" else header), field=header)
    receipt, transaction = headers.get("receipt"), headers.get("transaction")
    if transaction is not None:
        session.transactions.find(transaction)
    for subscription in session.topic_subscriptions.values():
        if subscription.holds(id):
            session.run_operation([] if receipt is None else [receipt], partial(subscription.settle, id))
            return
    taken = session.queue_leases.taken(id, headers.get("subscription") if session.version != V12 else None)
    if taken is None:
        raise NotFound(
            f"{id[:60]!r} is not leased by this connection: it was settled before, or never sent to it", field=header
        )
    session.settled["ack" if cause is None else "nack"] += len(taken.leases)
    if transaction is None:
        session.batch.settle([*taken.leases.values()], cause, receipt)
    else:
        session.transactions.settle(transaction, taken, cause)
        _confirm(session, receipt)


# -- transactions ------------------------------------------------------------------------------------------------------


def begin(session: "StompSession", headers: Headers, body: bytes) -> None:
    session.transactions.begin(_transaction(headers))
    _done(session, headers)


def commit(session: "StompSession", headers: Headers, body: bytes) -> None:
    found = session.transactions.take(_transaction(headers))
    receipt = headers.get("receipt")
    if found.records:
        session.publish(found.records, [] if receipt is None else [receipt])
    elif found.bundle.size:
        session.batch.commit(found.bundle, receipt)
    else:
        _confirm(session, receipt)


def abort(session: "StompSession", headers: Headers, body: bytes) -> None:
    found = session.transactions.take(_transaction(headers))
    for taken in reversed(found.taken):
        session.queue_leases.restore(taken)
    _done(session, headers)


def _transaction(headers: Headers) -> str:
    name = headers.get("transaction")
    if not name:
        raise BadInput("is missing: the name of the transaction", field="transaction")
    return name


HANDLERS: dict[str, Callable[["StompSession", Headers, bytes], None]] = {
    "CONNECT": connect,
    "STOMP": connect,
    "SEND": send,
    "SUBSCRIBE": subscribe,
    "UNSUBSCRIBE": unsubscribe,
    "ACK": ack,
    "NACK": nack,
    "BEGIN": begin,
    "COMMIT": commit,
    "ABORT": abort,
    "DISCONNECT": disconnect,
}
