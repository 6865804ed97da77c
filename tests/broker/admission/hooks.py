"""Hooks as a user writes them, some of them badly."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from yirangmq import BadInput, NewMessage, Reject

MODULE = "tests.broker.admission.hooks"


def amount(message: Any) -> None:
    """Positive, or it is refused with its field."""
    value = message.value()
    if value["amount"] < 0:
        raise BadInput("must not be negative", field="payload.amount")
    if value["amount"] > 100:
        raise Reject("too much")


def says(message: Any) -> Any:
    """What the payload asks for."""
    if message.payload == b"raise":
        raise KeyError("no such thing")
    if message.payload == b"value error":
        raise ValueError("not one of ours")
    if message.payload == b"exit":
        raise SystemExit(3)
    return {b"no": False, b"reason": "because", b"yes": True, b"thing": 7}.get(message.payload)


def hang(message: Any) -> None:
    """For ever, or as long as it is told to."""
    print("a hook may print")
    if message.payload == b"hang":
        while True:
            time.sleep(3600)


def die(message: Any) -> None:
    if message.payload == b"exit":
        os._exit(3)
    if message.payload == b"kill":
        os.kill(os.getpid(), signal.SIGKILL)


def wait(message: Any) -> None:
    """Until the file that the payload names is there; it says that it has begun."""
    path = Path(message.payload.decode())
    path.with_suffix(".begun").touch()
    while not path.exists():
        time.sleep(0.01)


def begun(message: Any) -> None:
    """Marks that it runs, and never ends."""
    Path(message.payload.decode()).write_text(str(os.getpid()))
    while True:
        time.sleep(3600)


def shout(message: Any) -> Any:
    if message.payload == b"quiet":
        return None
    return message.payload.upper()


def split(message: Any) -> list[NewMessage]:
    return [NewMessage(payload={"part": part}, type="part") for part in message.payload.decode().split(",")]


def broken(message: Any) -> NewMessage:
    return NewMessage(payload=b"x", id="not an id!")


not_a_function = 7
