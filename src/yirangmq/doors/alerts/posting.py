"""Notices to a webhook: POSTed as JSON, signed as the messages of a queue are (docs/http.md)."""

import ssl
import time
from collections.abc import Callable

from yirangmq.core.webhook import OutgoingNetworks, Webhook
from yirangmq.doors.alerts.channel import Document, Undelivered
from yirangmq.format.json_codec import dumps
from yirangmq.webhooks.http_client import BadAnswer, Poster, judged, signature


class Posting:
    """``doors.alerts.channel.Channel``. ``secret`` gives the one to sign with, b"" for none, each time anew."""

    def __init__(self, hook: Webhook, secret: Callable[[], bytes], networks: OutgoingNetworks) -> None:
        self._hook = hook
        self._secret = secret
        self._poster = Poster(hook.url, ssl.create_default_context, networks)

    async def send(self, document: Document) -> None:
        body = dumps(document)
        timestamp = str(int(time.time()))
        headers = [
            ("Content-Type", "application/json"),
            ("User-Agent", "yirangmq"),
            ("X-MQ-Alert", str(document["alert"]["id"])),
            ("X-MQ-Notice", str(document["notice"])),
            ("X-MQ-Timestamp", timestamp),
        ]
        secret = self._secret()
        if secret:
            headers.append(("X-MQ-Signature", signature(secret, timestamp, body)))
        try:
            answer = await self._poster.post([*headers, *self._hook.headers.items()], body)
        except (OSError, BadAnswer) as error:
            raise Undelivered(f"the webhook cannot be reached: {error}") from None
        outcome = judged(answer.status, answer.headers, answer.body, time.time())
        if outcome.reason:
            raise Undelivered(outcome.text)

    def close(self) -> None:
        self._poster.close()
