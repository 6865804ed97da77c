"""Where a publisher and its subscribers can be, and how they get from there to somewhere else.

Two rules of this file: every change of state of a feed is a row of one of the two tables, and nothing but states, verbs
and the places to begin lives here. ``docs/topics.md`` shows the tables."""

from enum import StrEnum


class PublisherState(StrEnum):
    STARTING = "starting"
    LISTENING = "listening"
    ONLINE = "online"
    ERROR = "error"


class PublisherVerb(StrEnum):
    START = "start"
    LISTEN = "listen"
    SERVE = "serve"
    FAIL = "fail"


PUBLISHER: dict[tuple[PublisherState | None, PublisherVerb], PublisherState] = {
    (None, PublisherVerb.START): PublisherState.STARTING,
    (PublisherState.STARTING, PublisherVerb.LISTEN): PublisherState.LISTENING,
    (PublisherState.LISTENING, PublisherVerb.SERVE): PublisherState.ONLINE,
    (PublisherState.STARTING, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.LISTENING, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.ONLINE, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.ERROR, PublisherVerb.START): PublisherState.STARTING,
}

PUBLISHER_MEANING: dict[PublisherState, str] = {
    PublisherState.STARTING: "the log is being opened, nobody is listened to yet",
    PublisherState.LISTENING: "clients can connect",
    PublisherState.ONLINE: "records are taken and sent",
    PublisherState.ERROR: "the log could not be opened or written; why stands beside it, and it is tried again",
}


class ClientState(StrEnum):
    """In the order of the public numbers 0 to 5."""

    __hash__ = str.__hash__  # an Enum hashes in Python code; these are looked up for every batch

    CONNECTED = "connected"
    RECOVERY_NEEDED = "recovery_needed"
    RECOVERING = "recovering"
    CATCHING_UP = "catching_up"
    ONLINE = "online"
    OFFLINE = "offline"


class ClientVerb(StrEnum):
    __hash__ = str.__hash__

    ACCEPT = "accept"
    SUBSCRIBE = "subscribe"
    LAG = "lag"
    RECOVER = "recover"
    COMPLETE = "complete"
    ARRIVE = "arrive"
    UNSUBSCRIBE = "unsubscribe"
    LEAVE = "leave"


CLIENT: dict[tuple[ClientState | None, ClientVerb], ClientState] = {
    (None, ClientVerb.ACCEPT): ClientState.CONNECTED,
    (ClientState.CONNECTED, ClientVerb.SUBSCRIBE): ClientState.ONLINE,
    (ClientState.ONLINE, ClientVerb.LAG): ClientState.RECOVERY_NEEDED,
    (ClientState.ONLINE, ClientVerb.RECOVER): ClientState.RECOVERING,
    (ClientState.RECOVERY_NEEDED, ClientVerb.RECOVER): ClientState.RECOVERING,
    (ClientState.RECOVERING, ClientVerb.COMPLETE): ClientState.CATCHING_UP,
    (ClientState.RECOVERING, ClientVerb.ARRIVE): ClientState.ONLINE,
    (ClientState.CATCHING_UP, ClientVerb.ARRIVE): ClientState.ONLINE,
    (ClientState.ONLINE, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.RECOVERY_NEEDED, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.RECOVERING, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.CATCHING_UP, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.CONNECTED, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.ONLINE, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.RECOVERY_NEEDED, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.RECOVERING, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.CATCHING_UP, ClientVerb.LEAVE): ClientState.OFFLINE,
}

CLIENT_MEANING: dict[ClientState, str] = {
    ClientState.CONNECTED: "it follows nothing yet",
    ClientState.RECOVERY_NEEDED: "it is behind; what is on its way must be read before the rest is sent from the log",
    ClientState.RECOVERING: "a recovery worker sends it what it missed",
    ClientState.CATCHING_UP: "what it missed is sent; what came meanwhile follows, still from the log",
    ClientState.ONLINE: "it is sent every record as soon as that is on disk",
    ClientState.OFFLINE: "it is not connected; of a durable one the cursor is kept",
}


class Start(StrEnum):
    """Where a subscription begins that does not go on under its name."""

    NEW = "new"
    BEGINNING = "beginning"
    SEQUENCE = "sequence"
    TIME = "time"


def publisher_after(state: PublisherState | None, verb: PublisherVerb) -> PublisherState | None:
    """The state that follows, or None where the verb does not apply."""
    return PUBLISHER.get((state, verb))


def client_after(state: ClientState | None, verb: ClientVerb) -> ClientState | None:
    """The state that follows, or None where the verb does not apply."""
    return CLIENT.get((state, verb))
