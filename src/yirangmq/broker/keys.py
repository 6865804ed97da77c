"""The key of a message, by which it is given to the same consumer as others with that key."""

from yirangmq.core.message import Envelope
from yirangmq.format.json_codec import loads


def key_of(envelope: Envelope, attribute: str) -> str:
    """The value of the attribute, or its group if no attribute is named; "" if it has none."""
    if not attribute:
        return f"group {envelope.group}" if envelope.group else ""
    if not envelope.header:
        return ""
    attributes = loads(envelope.header.encode()).get("attributes")
    value = attributes.get(attribute) if isinstance(attributes, dict) else None
    return "" if value is None else f"{type(value).__name__} {value}"
