"""Prints docs/configuration.md from the fields of ``yirangmq.config.settings``; ``python tools/config_docs.py`` writes
it, a test sees that it is current."""

from dataclasses import fields
from pathlib import Path

from yirangmq.config.config import Config
from yirangmq.config.settings import default_of, flag, variable

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRO = """# Configuration of the server

`yirangmq serve` starts without any setting: its queues are kept in one SQLite file under `./yirang-data`, and programs
on this machine reach it over a unix socket there, and over HTTP at port 8080.

*This page is printed from the program by `python tools/config_docs.py`.*

## Where settings come from

From weakest to strongest:

1. the defaults below;
2. a JSON file, named with `--config FILE`: one object, its members are the settings;
3. the environment: `YIRANGMQ_` and the setting's name in capitals. The variables of the HTTP queue whose API we speak
   ([http-mq](http-mq.md)) are read as well, where ours are not there: `MQ_HOST` (`localhost`) and `MQ_PORT` (8080) mean
   `http`, `MQ_DATA` means `data`, and `MQ_UNIQUE` means `mq_unique`, as for all settings that begin with `mq_`;
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

A name that is not known is refused, and so is a value that makes no sense; the error names it. Sizes are numbers of
bytes, or texts such as `"64KiB"`, `"16MiB"`, `"1GiB"`. Settings are read once, at the start; to change one, restart the
server (consumers that connect again keep their leases).

What governs a single queue (time-outs, retries, dead letters, history) is not here but in its
[policy](policy.md), which takes effect at once.

## Settings

| setting | default | meaning |
|---|---|---|
"""
TOKENS = """
## Tokens of HTTP clients

Without a token the server listens only for this machine, and whoever reaches it may do everything. With `token` (or
`token_file`) and `http_tokens` every HTTP client must show one of them, `Authorization: Bearer TOKEN`; only `/health`
and `/robots.txt` are for everybody, and a unix socket is for whoever may open its file. `token` allows everything. Each
of the `http_tokens` says what it allows:

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
| `queues` | patterns of names (`*`, `?`, `[a-c]`); default: `["*"]`, all. What is not about one queue needs `"*"` |

A client that asks more often than `http_rate` is answered 429 with `Retry-After`: it is counted by its token, or by its
address if it shows none that is known.
"""
NAMES = """
## Their names elsewhere

| setting | environment | flag |
|---|---|---|
"""


def page() -> str:
    settings = fields(Config)
    rows = [f"| `{one.name}` | {_shown(default_of(one))} | {one.metadata['about']} |\n" for one in settings]
    names = [f"| `{one.name}` | `{variable(one.name)}` | `{flag(one.name)}` |\n" for one in settings]
    return INTRO + "".join(rows) + TOKENS + NAMES + "".join(names)


def _shown(default: str) -> str:
    return f"`{default}`" if default else "none"


if __name__ == "__main__":
    PAGE.write_text(page())
