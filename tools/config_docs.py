"""Prints docs/configuration.md from the fields of ``yirangmq.config.settings``; ``python tools/config_docs.py`` writes
it, a test compares it with the program."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from yirangmq.config.config import Config
from yirangmq.config.settings import SECTIONS, default_of, flag, variable

PAGE_NAME = re.compile(r"docs/([\w-]+)\.md")
PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRO = """# Configuration of the server

`yirangmq serve` starts without any setting. It keeps its queues in one SQLite file in `./yirang-data`. Programs on
this machine reach it over a unix socket in that folder and over HTTP at port 8080.

*This page is printed from the program by `python tools/config_docs.py`.*

## Where settings come from

From weakest to strongest:

1. the defaults below;
2. a JSON file, named with `--config FILE`: one object, its members are the settings;
3. the environment: `YIRANGMQ_` and the setting's name in capitals. Variables of the HTTP queue ([http-mq](http-mq.md))
   are read if the former are not set: `MQ_HOST` (`localhost`) and `MQ_PORT` (8080) for `http`, `MQ_DATA` for `data`,
   and `MQ_UNIQUE` for `mq_unique`, as for all settings that begin with `mq_`;
4. flags: `--` and the setting's name with dashes.

```json
{
  "data": "/var/lib/yirangmq",
  "tcp": "0.0.0.0:7411",
  "token_file": "/etc/yirangmq/token",
  "tls_cert": "/etc/yirangmq/cert.pem",
  "tls_key": "/etc/yirangmq/key.pem",
  "max_frame_bytes": "32MiB"
}
```

An unknown name and an invalid value are errors at the start, which name the setting. Sizes are numbers of bytes, or
texts such as `"64KiB"`, `"16MiB"`, `"1GiB"`. Settings are read once, at the start; to change one, restart the server.
Consumers reconnect and keep their leases.

Timeouts, retries, dead letters and history of a single queue are members of its [policy](policy.md). A change takes
effect at once.

## Settings
"""
HEAD = "| setting | default | meaning |\n|---|---|---|\n"
TOKENS = """
## Tokens of HTTP clients

Without a token the server listens only for this machine, and every client that reaches it may do everything. With
`token` (or `token_file`) or `http_tokens`, every HTTP client must send one of them as
`Authorization: Bearer TOKEN`, except for `/health` and `/robots.txt`. The mode of its file protects a unix socket.
`token` allows everything. Each of the
`http_tokens` has scopes:

```json
{
  "http": "0.0.0.0:8080",
  "tls_cert": "/etc/yirangmq/cert.pem",
  "tls_key": "/etc/yirangmq/key.pem",
  "token_file": "/etc/yirangmq/token",
  "http_tokens": [
    {"tokenFile": "/etc/yirangmq/shop", "scopes": ["publish"], "queues": ["mail", "order-*"]},
    {"token": "mkMwgWlIFPB5Ia7fdIW1VDZxyL6Vf0fs", "scopes": ["publish", "consume"]}
  ]
}
```

| member | meaning |
|---|---|
| `token` or `tokenFile` | the token, at least 16 visible ASCII characters, or a file whose first line it is |
| `scopes` | `publish`, `consume`, `look`, `operate`, `admin` ([table](security.md)); default: the first two |
| `queues` | patterns of names (`*`, `?`, `[a-c]`); default: `["*"]`. Requests that name no queue need `"*"` |

A client above `http_rate` gets 429 with `Retry-After`. Clients are counted by token, or by address without a
known token.
"""
NAMES = """
## Variables and flags

| setting | environment | flag |
|---|---|---|
"""


def page() -> str:
    settings = fields(Config)
    names = [f"| `{one.name}` | `{variable(one.name)}` | `{flag(one.name)}` |\n" for one in settings]
    return INTRO + "".join(_rows()) + TOKENS + NAMES + "".join(names)


def _rows() -> Iterator[str]:
    titles = {first: title for title, first in SECTIONS.items()}
    for one in fields(Config):
        if one.name in titles:
            yield f"\n### {titles[one.name]}\n\n{HEAD}"
        yield f"| `{one.name}` | {_shown(default_of(one))} | {_linked(one.metadata['about'])} |\n"


def _linked(text: str) -> str:
    return PAGE_NAME.sub(r"[\1](\1.md)", text)


def _shown(default: str) -> str:
    return f"`{default}`" if default else "none"


if __name__ == "__main__":
    PAGE.write_text(page())
