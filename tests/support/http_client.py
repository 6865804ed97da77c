"""One HTTP request to a server that runs elsewhere, and its answer as JSON."""

import http.client
import json
from contextlib import closing
from typing import Any

from tests.support.wait import PATIENCE


def request_json(url: str, method: str, path: str, document: object = None, *, token: str = "") -> tuple[int, Any]:
    """(status, document) of one request on a connection of its own. A body that is not bytes is sent as JSON; an answer
    that is not JSON is text."""
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)) as connection:
        body = document if document is None or isinstance(document, bytes) else json.dumps(document).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status, json.loads(data or b"null") if is_json else data.decode()
