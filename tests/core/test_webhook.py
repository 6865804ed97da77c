"""The webhook in a policy: read to the last field, shown as it was read."""

from typing import Any

import pytest

from yirangmq.core.errors import BadPolicy
from yirangmq.core.policy import read_policy, show_policy
from yirangmq.core.webhook import Webhook, read_webhook, show_webhook

URL = "https://example.com:8443/hook?a=b"


def test_webhook_null_is_none() -> None:
    assert read_webhook(None) is None
    assert show_webhook(None) is None


def test_webhook_needs_only_a_url() -> None:
    assert read_webhook({"url": URL}) == Webhook(URL)


@pytest.mark.parametrize(
    "document",
    [
        {"url": URL, "secret": "shop", "timeoutSec": 2.5, "concurrency": 9, "headers": {"X-Shop": "7"}},
        {"url": "http://[::1]:80/", "secret": None, "timeoutSec": 30, "concurrency": 4, "headers": {}},
    ],
)
def test_webhook_shown_equals_what_was_read(document: dict[str, Any]) -> None:
    assert show_policy(read_policy({"webhook": document}, "mail"))["webhook"] == document


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("http://x", "webhook"),
        ({}, "webhook.url"),
        ({"url": "ftp://example.com"}, "webhook.url"),
        ({"url": "http://"}, "webhook.url"),
        ({"url": "http://x:port/"}, "webhook.url"),
        ({"url": "http://x:0/"}, "webhook.url"),
        ({"url": "http://[::1/"}, "webhook.url"),
        ({"url": "http://user:secret@example.com/"}, "webhook.url"),
        ({"url": "http://example.com/#part"}, "webhook.url"),
        ({"url": "http://example.com/a b"}, "webhook.url"),
        ({"url": "http://example.com/\r\nX: y"}, "webhook.url"),
        ({"url": "http://example.com/é"}, "webhook.url"),
        ({"url": "http://example.com/" + "x" * 2000}, "webhook.url"),
        ({"url": URL, "secret": "../shadow"}, "webhook.secret"),
        ({"url": URL, "timeoutSec": 0}, "webhook.timeoutSec"),
        ({"url": URL, "concurrency": 0}, "webhook.concurrency"),
        ({"url": URL, "headers": []}, "webhook.headers"),
        ({"url": URL, "headers": {"A b": "c"}}, "webhook.headers.A b"),
        ({"url": URL, "headers": {"A": "c\r\nB: d"}}, "webhook.headers.A"),
        ({"url": URL, "headers": {"A": 5}}, "webhook.headers.A"),
        ({"url": URL, "headers": {"Host": "x"}}, "webhook.headers.Host"),
        ({"url": URL, "headers": {"x-mq-signature": "x"}}, "webhook.headers.x-mq-signature"),
        ({"url": URL, "retries": 5}, "webhook.retries"),
    ],
)
def test_webhook_that_is_invalid_is_refused_with_its_field(document: Any, field: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        read_policy({"webhook": document}, "mail")
    assert caught.value.field == field
