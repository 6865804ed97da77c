"""The error ``store_read_only``: what every store says when it cannot be written, and what to do."""

from yirangmq.core.errors import StoreReadOnly

ADVICE = (
    "mount its file system read-write, or give this user the right to write there; "
    "status, peek, dlq list, export and check work without"
)


def unwritable(place: object, why: object) -> StoreReadOnly:
    return StoreReadOnly(f"{place} cannot be written: {why}; {ADVICE}")
