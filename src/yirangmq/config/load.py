"""Settings from where people write them, each stronger than the one before: defaults, the JSON file, the environment,
flags. What is unknown or makes no sense is refused under the name it was written with."""

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from yirangmq.config.checks import checked
from yirangmq.config.config import Config
from yirangmq.config.setting import PREFIX, flag, variable
from yirangmq.core.errors import BadInput
from yirangmq.core.validation import kind, nearest

FOREIGN = "mq_"
"""Settings that are variables of the HTTP queue whose API we speak; those are read too, and are weaker than ours."""


def load(document: object, env: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The settings in force. ``flags`` are by name of the setting; those not given are None."""
    if not isinstance(document, Mapping):
        raise BadInput(f"must be a JSON object, not {kind(document)}", field="config")
    known = {setting.name: setting for setting in fields(Config)}
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise BadInput(f"is not a setting; {_hint(str(name), known)}", field=str(name))
        found[name] = _read(known[name], value, name)
    found |= _foreign(known, env)
    variables = {variable(name): name for name in known}
    for text, value in env.items():
        if text in variables:
            found[variables[text]] = _read(known[variables[text]], value, text)
        elif text.startswith(PREFIX) and nearest(text, variables, 0.9):
            raise BadInput(f"is not a setting; {_hint(text, variables)}", field=text)
    for name, given in flags.items():
        if given is not None:
            found[name] = _read(known[name], given, flag(name))
    return checked(Config(**found))


def _foreign(known: "Mapping[str, Field[Any]]", env: Mapping[str, str]) -> dict[str, Any]:
    """Variables of the HTTP queue whose API we speak; an empty one says nothing."""
    found = {
        name: _read(setting, env[name.upper()], name.upper())
        for name, setting in known.items()
        if name.startswith(FOREIGN) and env.get(name.upper())
    }
    if env.get("MQ_DATA"):
        found["data"] = _read(known["data"], env["MQ_DATA"], "MQ_DATA")
    if env.get("MQ_HOST") or env.get("MQ_PORT"):
        address = f"{env.get('MQ_HOST') or 'localhost'}:{env.get('MQ_PORT') or 8080}"
        found["http"] = _read(known["http"], address, "MQ_HOST")
    return found


def _hint(name: str, known: Mapping[str, object]) -> str:
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"


def _read(setting: "Field[Any]", value: object, field: str) -> Any:
    try:
        return setting.metadata["read"](value)
    except ValueError as error:
        raise BadInput(str(error), field=field) from None
