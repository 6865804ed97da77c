"""The SHA-256 of a payload, kept in its envelope's header as the member ``payloadSha256``.

Knows: where it stands and what it must be. Does not know: which queues keep one."""

from hashlib import sha256

from yirangmq.core.errors import BadInput, TooLarge, Unfit
from yirangmq.core.message import Envelope
from yirangmq.format.envelope import MAX_HEADER
from yirangmq.format.jsontext import dumps, loads

DIGEST = "payloadSha256"
_KEY = f'"{DIGEST}"'
_BEGIN = f'{{"{DIGEST}":"'
_END = len(_BEGIN) + 64


def with_digest(envelope: Envelope) -> Envelope:
    """With the digest of its payload. One that the sender gave must be right: ``Unfit`` if it is not."""
    header, digest = envelope.header, sha256(envelope.payload).hexdigest()
    if _KEY in header:
        members = loads(header.encode())
        said = members.pop(DIGEST, digest)
        if said != digest:
            raise Unfit(f"is {_shortened(said)}, that of the payload is {digest}", field=DIGEST)
        header = dumps(members).decode() if members else ""
    header = f'{_BEGIN}{digest}",{header[1:]}' if header else f'{_BEGIN}{digest}"}}'
    if len(header) > MAX_HEADER:
        raise TooLarge(f"with its digest the envelope has more than {MAX_HEADER} bytes", field="attributes")
    return envelope._replace(header=header)


def digest_of(envelope: Envelope) -> str:
    """As it is kept; "" if there is none. ``BadInput`` if the header cannot be read."""
    header = envelope.header
    if header.startswith(_BEGIN):
        return header[len(_BEGIN) : _END]
    if _KEY not in header:
        return ""
    return str(loads(header.encode()).get(DIGEST, ""))


def damage(envelope: Envelope) -> str:
    """What is wrong with a stored payload; "" if nothing is, or if no digest was kept."""
    try:
        kept = digest_of(envelope)
    except BadInput as error:
        return f"header: {error}"
    if not kept:
        return ""
    found = sha256(envelope.payload).hexdigest()
    return "" if found == kept else f"payload: its SHA-256 is {found}, it was stored with {_shortened(kept)}"


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
