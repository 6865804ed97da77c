"""Alert sinks over the network: e-mail by SMTP, and webhooks.

``smtplib`` blocks, so each mail has a separate thread and connection; cancelling closes the connection, which ends the
thread. A webhook receives the notice as JSON, signed like the messages of a queue (docs/webhooks.md). Both connect only
to addresses that the setting ``outgoing_networks`` allows."""

import asyncio
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Any

from yirangmq.alerts.outbox import Document, Undelivered
from yirangmq.core.alert_settings import EmailTarget
from yirangmq.core.webhook import OutgoingNetworks, Webhook
from yirangmq.format.json_codec import dumps
from yirangmq.webhooks.http_client import BadResponse, WebhookClient, allowed_addresses, response_outcome, signature

# -- e-mail ------------------------------------------------------------------------------------------------------------

MAX_SUBJECT_CHARS = 200
SERVICE_READY = 220
"""SMTP status code of the server's greeting."""
MAX_REPLY_CHARS = 200


class EmailChannel:
    """Channel that sends e-mail; implements ``alerts.outbox.Channel``.

    ``secret`` returns the password, or b"" for none; it is called for each mail. ``seconds``: timeout of each step of
    the SMTP session."""

    def __init__(
        self, mail: EmailTarget, secret: Callable[[], bytes], seconds: float, networks: OutgoingNetworks
    ) -> None:
        self._mail = mail
        self._secret = secret
        self._networks = networks
        self._seconds = seconds

    async def send(self, document: Document) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        session = SmtpSession(self._mail, self._secret(), self._seconds, self._networks)

        def settle(trouble: str) -> None:
            if not done.done():
                done.set_exception(Undelivered(trouble)) if trouble else done.set_result(None)

        def work() -> None:
            trouble = session.send_mail(compose_email(document, self._mail))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, trouble)

        threading.Thread(target=work, name="mail", daemon=True).start()
        try:
            await done
        finally:
            session.abort()

    def close(self) -> None:
        """Do nothing: each mail has a separate connection."""


class SmtpSession:
    """One SMTP session. ``send_mail`` blocks, and runs in its own thread; ``abort`` ends the session from another
    thread."""

    def __init__(self, mail: EmailTarget, password: bytes, seconds: float, networks: OutgoingNetworks) -> None:
        self._mail = mail
        self._networks = networks
        self._password = password
        self._seconds = seconds
        self._client: smtplib.SMTP | None = None
        self._is_aborted = False

    def send_mail(self, message: EmailMessage) -> str:
        """Send a mail. Return the error, or "" if the server accepted it."""
        try:
            with self._connect() as client:
                self._client = client
                if self._is_aborted:
                    return "given up"
                if self._mail.tls == "starttls":
                    client.starttls(context=self._tls())
                if self._mail.user:
                    client.login(self._mail.user, self._password.decode())
                refused = client.send_message(message, self._mail.sender, list(self._mail.to))
            return f"refused for {', '.join(refused)}" if refused else ""
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error
            words = said.decode(errors="replace") if isinstance(said, bytes) else said
            return f"the mail server answered {error.smtp_code}: {words[:MAX_REPLY_CHARS]}"
        except smtplib.SMTPRecipientsRefused as error:
            return f"the mail server refused {', '.join(error.recipients)}"
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return f"the mail server cannot be used: {type(error).__name__} {error}"

    def _connect(self) -> smtplib.SMTP:
        mail = self._mail
        context = self._tls() if mail.tls == "tls" else None
        client = CheckedSmtp(self._networks, context, self._seconds)
        code, greeting = client.connect(mail.host, mail.port)
        if code != SERVICE_READY:
            client.close()
            raise smtplib.SMTPConnectError(code, greeting)
        return client

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._mail.ca_file or None)

    def abort(self) -> None:
        """Shut down the socket. This also ends a session with a server that keeps sending single bytes."""
        self._is_aborted = True
        line = None if self._client is None else self._client.sock
        if line is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


class CheckedSmtp(smtplib.SMTP):
    """SMTP client that connects only to addresses that ``networks`` allows.

    If there is a context, it uses TLS from the first byte."""

    def __init__(self, networks: OutgoingNetworks, context: ssl.SSLContext | None, seconds: float) -> None:
        self._networks = networks
        self._context = context
        super().__init__(timeout=seconds)

    def connect(self, host: str = "localhost", port: int = 0, source_address: Any = None) -> tuple[int, bytes]:
        self._host = host  # STARTTLS verifies the certificate against this name
        return super().connect(host, port, source_address)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        trouble: OSError | None = None
        for address in allowed_addresses(found, host, self._networks):
            try:
                line = socket.create_connection((address, port), timeout)
                return line if self._context is None else self._context.wrap_socket(line, server_hostname=host)
            except OSError as error:
                trouble = error
        raise trouble or OSError(f"{host} has no address")


def compose_email(document: Document, mail: EmailTarget) -> EmailMessage:
    alert = document["alert"]
    message = EmailMessage()
    head = f"[{alert['level']}] {document['node']}: {document['notice']}: {alert['text']}"
    message["Subject"] = " ".join(head.split())[:MAX_SUBJECT_CHARS]
    message["From"] = mail.sender
    message["To"] = ", ".join(mail.to)
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = make_msgid(domain="yirangmq.invalid")
    message["Auto-Submitted"] = "auto-generated"
    message["X-MQ-Alert"] = alert["id"]
    lines = [alert["text"], ""]
    lines += [f"{name}: {value}" for name, value in {**document, **alert}.items() if name not in ("alert", "text")]
    lines += ["", f"acknowledge: yirangmq alert ack {alert['id']}"] if document["notice"] != "recovered" else []
    message.set_content("\n".join(lines) + "\n")
    message.add_attachment(dumps(document), maintype="application", subtype="json", filename="notice.json")
    return message


# -- webhook -----------------------------------------------------------------------------------------------------------


class WebhookChannel:
    """Channel that POSTs notices to a webhook; implements ``alerts.outbox.Channel``.

    ``secret`` returns the signing secret, or b"" for none; it is called for each notice."""

    def __init__(self, hook: Webhook, secret: Callable[[], bytes], networks: OutgoingNetworks) -> None:
        self._hook = hook
        self._secret = secret
        self._client = WebhookClient(hook.url, ssl.create_default_context, networks)

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
            answer = await self._client.post([*headers, *self._hook.headers.items()], body)
        except (OSError, BadResponse) as error:
            raise Undelivered(f"the webhook cannot be reached: {error}") from None
        outcome = response_outcome(answer.status, answer.headers, answer.body, time.time())
        if outcome.reason:
            raise Undelivered(outcome.text)

    def close(self) -> None:
        self._client.close()
