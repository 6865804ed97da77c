"""What each frame of a STOMP client does. A frame that is refused raises; the session says so and closes.

Knows: headers and their meaning. Does not know: bytes."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.message import Reason
from yirangmq.core.transitions import Cause
from yirangmq.doors.stomp import access, beats, destinations, presence, translate
from yirangmq.doors.stomp.consuming import CONSUMERS, MOST_PREFETCH, PREFETCH, AckMode, QueueTaker
from yirangmq.doors.stomp.destinations import Destination, Kind
from yirangmq.doors.stomp.errand import Receipt
from yirangmq.doors.stomp.hub import Client, Terms
from yirangmq.topics.publisher import Publisher
from yirangmq.wire.stomp import V10, V12, VERSIONS, escape

if TYPE_CHECKING:
    from yirangmq.doors.stomp.session import StompSession

Headers = dict[str, str]
GREETINGS = ("CONNECT", "STOMP")
MOST_SUBSCRIPTIONS = 64
REFUSED = {
    "selector": "is not known here: give what is wanted apart a queue of its own",
    "activemq.exclusive": "is not known here: JMSXGroupID keeps messages of a group in order",
    "activemq.retroactive": "is not known here: a durable subscription hears what it missed",
    "activemq.noLocal": "is not known here: subscribe to what others send to",
    "no-local": "is not known here: subscribe to what others send to",
}
"""Headers of SUBSCRIBE that would change what is delivered; to pass over them would be to lie."""
DURABLE_NAMES = ("activemq.subscriptionName", "durable-subscription-name")
NACKED = Cause(Reason.HANDLER_ERROR, "nacked over STOMP")


# -- coming and going -------------------------------------------------------------------------------------------------


def connect(session: "StompSession", headers: Headers, body: bytes) -> None:
    if session.is_greeted:
        raise BadInput("this connection is connected already", field="command")
    offered = [one.strip() for one in headers.get("accept-version", V10).split(",")]
    known = [version for version in VERSIONS if version in offered]
    if not known:
        error = BadInput(
            f"none of {', '.join(offered)[:60]} is spoken here; offer 1.0, 1.1 or 1.2", field="accept-version"
        )
        session.fail(error, version=",".join(VERSIONS))
        return
    asked = beats.read(headers.get("heart-beat"))
    shown = headers.get("login", ""), headers.get("passcode", ""), session.peer()
    delay = session.parlour.access.delay(*shown)
    if delay and not session.was_delayed:
        session.delay_greeting(delay, lambda: connect(session, headers, body))
        return
    session.grant = session.parlour.access.grant(*shown)
    client = headers.get("client-id", "")
    session.client = client[:64]
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in client)
    session.holdings.consumer = f"{CONSUMERS}{plain[:40] or session.number}"
    session.roster_name = f"{session.holdings.consumer}:{session.number}" if plain else session.holdings.consumer
    session.greeted(known[-1], asked)
    told = {"version": known[-1], "session": session.name, "server": session.parlour.server}
    session.say("CONNECTED", {**told, "heart-beat": beats.shown(asked)})


def disconnect(session: "StompSession", headers: Headers, body: bytes) -> None:
    _done(session, headers)
    session.leave()


# -- sending ----------------------------------------------------------------------------------------------------------


def send(session: "StompSession", headers: Headers, body: bytes) -> None:
    kind, name = destinations.parse(headers.get("destination"))
    receipt, transaction = headers.get("receipt"), headers.get("transaction")
    session.house.check_room()
    if headers.get("reply-to", "").startswith(Kind.TEMPORARY.value):
        reply = headers["reply-to"].removeprefix(Kind.TEMPORARY.value)
        headers = {**headers, "reply-to": f"/queue/{destinations.temporary(session.name, reply)}"}
    if kind is Kind.TOPIC:
        _send_record(session, destinations.checked(name), headers, body)
        return
    queue = _queue(session, kind, name)
    access.check(session.grant, "SEND", queue)
    envelope = translate.envelope(queue, session.fresh_id(), headers, body, session.house.clock.now_ms())
    if transaction is None:
        session.errand.send(envelope, receipt)
    else:
        session.transactions.add(transaction, envelope)
        _confirm(session, receipt)


def _send_record(session: "StompSession", topic: str, headers: Headers, body: bytes) -> None:
    topics_of(session)
    access.check(session.grant, "SEND", topic)
    record = translate.record(topic, headers, body)
    transaction = headers.get("transaction")
    if transaction is None:
        session.records.append((record, headers.get("receipt")))
    else:
        session.transactions.add(transaction, record)
        _done(session, headers)


def topics_of(session: "StompSession") -> Publisher:
    topics = session.parlour.hub.topics
    if topics is None:
        raise BadInput("this server has no topics", field="destination")
    return topics


def _queue(session: "StompSession", kind: Kind, name: str) -> str:
    if kind is Kind.TEMPORARY:
        return destinations.temporary(session.name, name)
    return destinations.checked(name)


def _done(session: "StompSession", headers: Headers) -> None:
    _confirm(session, headers.get("receipt"))


def _confirm(session: "StompSession", receipt: Receipt) -> None:
    if receipt is not None:
        session.errand.receipts.append(receipt)


# -- taking -----------------------------------------------------------------------------------------------------------


def subscribe(session: "StompSession", headers: Headers, body: bytes) -> None:
    destination = destinations.parse(headers.get("destination"))
    id = headers.get("id")
    if id is None and session.version != V10:
        raise BadInput("is missing: a SUBSCRIBE names itself", field="id")
    name = headers["destination"] if id is None else id
    if name in session.holdings.takers or name in session.followings:
        raise BadInput(f"{name[:60]!r} is subscribed already", field="id")
    if len(session.holdings.takers) + len(session.followings) >= MOST_SUBSCRIPTIONS:
        raise BadInput(f"{MOST_SUBSCRIPTIONS} subscriptions in one connection; open another one", field="id")
    for header, says in REFUSED.items():
        if headers.get(header, "false") not in ("false", ""):
            raise BadInput(says, field=header)
    mode, credit = _mode(headers), _prefetch(headers)
    address = translate.Address(session.version, id, mode is not AckMode.AUTO)
    if destination.kind is Kind.TOPIC:
        _follow(session, name, destination, Terms(_NOTHING, mode, credit, address, _durable(session, headers)), headers)
    else:
        queue = _queue(session, *destination)
        access.check(session.grant, "SUBSCRIBE", queue)
        if destination.kind is Kind.TEMPORARY:
            session.temporary.add(queue)
        shown = escape(destination.kind.value + destination.name, session.version)
        session.holdings.subscribe(name, QueueTaker(queue, shown, mode, credit, address, session.holdings))
        _done(session, headers)
    if not session.started_at:
        presence.begin_presence(session)


_NOTHING = destinations.topic_filter("none")


def _follow(session: "StompSession", name: str, destination: Destination, terms: Terms, headers: Headers) -> None:
    from yirangmq.doors.stomp.following import Following  # loaded for the first one who follows

    topics = topics_of(session)
    access.check(session.grant, "SUBSCRIBE", destination.name)
    terms = terms._replace(filter=destinations.topic_filter(destination.name))
    client = Client(session.push, session.has_room, session.fail)
    following = Following(topics, terms, client)
    session.followings[name] = following
    receipt = headers.get("receipt")
    session.waiting([] if receipt is None else [receipt], following.begin)
    session.parlour.hub.add(following)


def _durable(session: "StompSession", headers: Headers) -> str:
    given = next((headers[name] for name in DURABLE_NAMES if headers.get(name)), "")
    if not given:
        return ""
    if not session.client:
        raise BadInput("is missing: CONNECT with the one that a durable subscription belongs to", field="client-id")
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
    return min(int(text), MOST_PREFETCH)


def unsubscribe(session: "StompSession", headers: Headers, body: bytes) -> None:
    name = headers.get("id", headers.get("destination") if session.version == V10 else None)
    if name is None:
        raise BadInput("is missing: the one that SUBSCRIBE had", field="id")
    following = session.followings.pop(name, None)
    if following is not None:
        following.end()
        session.parlour.hub.remove(following)
        receipt = headers.get("receipt")
        if following.terms.name and any(headers.get(one) for one in DURABLE_NAMES):
            session.waiting([] if receipt is None else [receipt], following.forget)
            return
    elif not session.holdings.unsubscribe(name):
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
        raise BadInput("is missing: what MESSAGE has as " + ("ack" if header == "id" else header), field=header)
    receipt, transaction = headers.get("receipt"), headers.get("transaction")
    if transaction is not None:
        session.transactions.find(transaction)
    for following in session.followings.values():
        if following.holds(id):
            session.waiting([] if receipt is None else [receipt], partial(following.settle, id))
            return
    taken = session.holdings.taken(id, headers.get("subscription") if session.version != V12 else None)
    if taken is None:
        raise NotFound(f"{id[:60]!r} is not held: it was settled before, or never sent here", field=header)
    session.settled["ack" if cause is None else "nack"] += len(taken.leases)
    if transaction is None:
        session.errand.settle([*taken.leases.values()], cause, receipt)
    else:
        session.transactions.settle(transaction, taken, cause)
        _confirm(session, receipt)


# -- together or not at all -------------------------------------------------------------------------------------------


def begin(session: "StompSession", headers: Headers, body: bytes) -> None:
    session.transactions.begin(_transaction(headers))
    _done(session, headers)


def commit(session: "StompSession", headers: Headers, body: bytes) -> None:
    found = session.transactions.take(_transaction(headers))
    receipt = headers.get("receipt")
    if found.records:
        session.publish(found.records, [] if receipt is None else [receipt])
    elif found.bundle.size:
        session.errand.commit(found.bundle, receipt)
    else:
        _confirm(session, receipt)


def abort(session: "StompSession", headers: Headers, body: bytes) -> None:
    found = session.transactions.take(_transaction(headers))
    for taken in reversed(found.taken):
        session.holdings.untake(taken)
    _done(session, headers)


def _transaction(headers: Headers) -> str:
    name = headers.get("transaction")
    if not name:
        raise BadInput("is missing: the name of the transaction", field="transaction")
    return name


ACTS: dict[str, Callable[["StompSession", Headers, bytes], None]] = {
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
