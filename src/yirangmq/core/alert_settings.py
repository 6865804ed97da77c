"""Setting ``alerts``: rule limits, pacing of notices, and sinks (webhook, e-mail, command).

Reads the JSON document and checks every member; ``BadInput`` names the one that is wrong. The document holds no
password: ``secret`` is the name of a file. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from yirangmq.core.alert_rules import NAMES, RULES, RuleSetting, check_rules
from yirangmq.core.alerts import Level, NoticePacing
from yirangmq.core.errors import BadInput
from yirangmq.core.validation import MAX_SECONDS, Fields, check_consumer, check_id, kind
from yirangmq.core.webhook import Webhook, read_webhook

KINDS = ("webhook", "email", "command")
TLS = ("starttls", "tls", "off")
PORTS = {"starttls": 587, "tls": 465, "off": 25}
MAILBOX = re.compile(r"[^\s@<>,;\"]{1,64}@[^\s@<>,;\"]{1,255}")
MAX_SINKS = 50
MAX_COMMAND_WORDS = 100
LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeFilter:
    """Filter of the notices that a sink gets: of this level and above, and of these rules (empty: all rules)."""

    level: Level = Level.INFO
    rules: tuple[str, ...] = ()

    def accepts(self, level: Level, rule: str) -> bool:
        return level.rank >= self.level.rank and (not self.rules or rule in self.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailTarget:
    """E-mail target of a sink. ``secret``: the name of the file with the password; "" if the server does not log in."""

    host: str
    port: int
    tls: str
    sender: str
    to: tuple[str, ...]
    user: str = ""
    secret: str = ""
    ca_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """Command target of a sink: the program and its arguments, run without a shell."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    name: str
    kind: str
    notice_filter: NoticeFilter
    timeout: float
    """Timeout of one attempt, in seconds."""
    to: Webhook | EmailTarget | CommandTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    is_on: bool = True
    every: float = 5.0
    """Seconds between two evaluations of the rules."""
    window: int = 300_000
    """Window of the rules that count events, in milliseconds."""
    pace: NoticePacing = field(default_factory=NoticePacing)
    rules: Mapping[str, RuleSetting] = field(default_factory=dict)
    log: Level | None = Level.INFO
    """Notices of this level and above are logged; None: none are."""
    give_up: float = 3600.0
    """Seconds for which a notice that a sink does not accept is sent again."""
    sinks: tuple[Sink, ...] = ()


def read_settings(given: object, path: str = "") -> AlertSettings:
    """Parse the document of the setting ``alerts``; ``BadInput`` names the member that is wrong."""
    fields = Fields(given, path)
    pace = NoticePacing(
        settle=round(fields.number("settleSec", 60, least=0, most=86_400) * 1000),
        remind=round(fields.number("remindSec", 3600, least=0, most=MAX_SECONDS) * 1000),
        most=fields.whole("mostPerHour", 30, least=1, most=10_000),
    )
    log = fields.choice("log", Level.INFO.value, (*Level, "off"))
    settings = AlertSettings(
        is_on=fields.flag("enabled", True),
        every=fields.number("everySec", 5, least=0.05, most=3600),
        window=round(fields.number("windowSec", 300, least=0.1, most=86_400) * 1000),
        pace=pace,
        rules=_rules(fields.inner("rules")),
        log=None if log == "off" else Level(log),
        give_up=fields.number("giveUpSec", 3600, least=0, most=7 * 86_400),
        sinks=_sinks(fields.take("sinks", []), fields.name("sinks")),
    )
    fields.done()
    return settings


# -- rules ----------------------------------------------------------------------------------------------------------


def _rules(fields: Fields) -> dict[str, RuleSetting]:
    found = {}
    for name in RULES:
        given = fields.take(name, None)
        if given is not None:
            found[name] = _rule(name, given, fields.name(name))
    fields.done()
    return found


def _rule(name: str, given: object, path: str) -> RuleSetting:
    """Parse the settings of one rule: an object, or false to disable the rule."""
    if given is False:
        return RuleSetting(is_on=False)
    fields, rule = Fields(given, path), RULES[name]
    level = fields.take("level", None)
    if level is not None and level not in tuple(Level):
        raise BadInput(f"must be one of {', '.join(Level)}, not {level!r}", field=fields.name("level"))
    setting = RuleSetting(
        is_on=fields.flag("enabled", True),
        limit=None if rule.limit is None else fields.number("limit", rule.limit, least=0, most=2**53),
        level=None if level is None else Level(str(level)),
        queues=_of_queues(fields.take("queues", {}), fields.name("queues")) if rule.by_queue else (),
    )
    fields.done()
    return setting


def _of_queues(given: object, path: str) -> tuple[tuple[str, float], ...]:
    if not isinstance(given, Mapping):
        raise BadInput(f"must be an object of patterns and limits, not {kind(given)}", field=path)
    fields = Fields(given, path)
    return tuple((str(name), fields.number(str(name), 0, least=0, most=2**53)) for name in given)


# -- sinks ----------------------------------------------------------------------------------------------------------


def _sinks(given: object, path: str) -> tuple[Sink, ...]:
    if not isinstance(given, list) or len(given) > MAX_SINKS:
        raise BadInput(f"must be an array of at most {MAX_SINKS} objects, not {kind(given)}", field=path)
    found = tuple(_sink(one, f"{path}[{place}]") for place, one in enumerate(given))
    names = [sink.name for sink in found]
    if len({*names, LOG}) != len(names) + 1:
        raise BadInput(f"two sinks have the same name, or one has the name {LOG!r}; give each its own name", field=path)
    return found


def _sink(given: object, path: str) -> Sink:
    fields = Fields(given, path)
    if not isinstance(given, Mapping) or given.get("kind") not in KINDS:
        raise BadInput(f"must be one of {', '.join(KINDS)}", field=fields.name("kind"))
    what = fields.choice("kind", "", KINDS)
    name = check_consumer(fields.take("name", what), fields.name("name"))
    notice_filter = NoticeFilter(level=Level(fields.choice("level", Level.INFO, tuple(Level))), rules=_names(fields))
    timeout = fields.number("timeoutSec", 10, least=0.05, most=600)
    return Sink(name=name, kind=what, notice_filter=notice_filter, timeout=timeout, to=_READ[what](fields))


def _names(fields: Fields) -> tuple[str, ...]:
    given = _texts(fields.take("rules", []), fields.name("rules"), 0)
    wrong = check_rules(given)
    if wrong:
        raise BadInput(f"{wrong!r} is not a rule; known: {', '.join(NAMES)}", field=fields.name("rules"))
    return given


def _webhook(fields: Fields) -> Webhook:
    document = {name: fields.take(name, None) for name in ("url", "secret")}
    headers = fields.take("headers", {})
    fields.done()
    found = read_webhook({**document, "headers": headers})
    assert found is not None
    return found


def _mail(fields: Fields) -> EmailTarget:
    tls = fields.choice("tls", "starttls", TLS)
    user, secret = _text(fields, "user", ""), fields.take("secret", None)
    mail = EmailTarget(
        host=_text(fields, "host"),
        port=fields.whole("port", PORTS[tls], least=1, most=65_535),
        tls=tls,
        sender=_mailbox(fields.take("from", None), fields.name("from")),
        to=tuple(_mailbox(one, fields.name("to")) for one in _texts(fields.take("to", None), fields.name("to"), 1)),
        user=user,
        secret="" if secret is None else check_id(secret, fields.name("secret")),
        ca_file=_text(fields, "caFile", ""),
    )
    fields.done()
    if bool(mail.user) != bool(mail.secret):
        raise BadInput("user and secret go together", field=fields.name("secret" if mail.user else "user"))
    if mail.user and tls == "off" and mail.host not in ("localhost", "127.0.0.1", "::1"):
        raise BadInput("a password is not sent without TLS to another machine", field=fields.name("tls"))
    return mail


def _program(fields: Fields) -> CommandTarget:
    words = _texts(fields.take("run", None), fields.name("run"), 1)
    fields.done()
    return CommandTarget(words=words)


_READ: dict[str, Any] = {"webhook": _webhook, "email": _mail, "command": _program}


def _text(fields: Fields, name: str, default: str | None = None) -> str:
    value = fields.take(name, default)
    if not isinstance(value, str) or len(value) > 500 or not value.isprintable() or (default is None and not value):
        raise BadInput("must be a text", field=fields.name(name))
    return value


def _texts(given: object, path: str, least: int) -> tuple[str, ...]:
    is_one = isinstance(given, list) and least <= len(given) <= MAX_COMMAND_WORDS
    if not is_one or not all(isinstance(one, str) and one and "\0" not in one for one in given):  # type: ignore[attr-defined]
        raise BadInput(f"must be an array of {least} to {MAX_COMMAND_WORDS} texts", field=path)
    return tuple(given)  # type: ignore[arg-type]


def _mailbox(given: object, path: str) -> str:
    if not isinstance(given, str) or not MAILBOX.fullmatch(given) or not given.isascii():
        raise BadInput(f"must be an address such as ops@example.org, not {given!r}", field=path)
    return given
