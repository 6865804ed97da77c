"""From the sinks of the settings to channels."""

from collections.abc import Callable
from functools import partial

from yirangmq.core.alert_settings import Mail, Program, Sink
from yirangmq.core.errors import QueueError
from yirangmq.core.webhook import OutgoingNetworks
from yirangmq.doors.alerts.channel import Channel, Undelivered
from yirangmq.doors.alerts.running import Running

Secret = Callable[[str], bytes]
"""From a name to the secret, or ``QueueError`` if there is none."""


def channel_of(sink: Sink, secret: Secret, networks: OutgoingNetworks) -> Channel:
    if isinstance(sink.to, Mail):
        from yirangmq.doors.alerts.mailing import Mailing  # a server that sends no mail does not load it

        return Mailing(sink.to, partial(_secret, secret, sink.to.secret), sink.timeout, networks)
    if isinstance(sink.to, Program):
        return Running(sink.to)
    from yirangmq.doors.alerts.posting import Posting  # nor one without webhooks what they need

    return Posting(sink.to, partial(_secret, secret, sink.to.secret), networks)


def _secret(secret: Secret, name: str) -> bytes:
    try:
        return secret(name) if name else b""
    except QueueError as error:
        raise Undelivered(str(error)) from None
