"""Which of two forms a client would rather have: an array, or a line for each. Knows: the header Accept."""

from functools import lru_cache

ARRAY, LINES = "application/json", "application/x-ndjson"
LONGEST_ACCEPT = 2048


@lru_cache(maxsize=256)
def preferred(accept: str) -> str:
    """The larger q wins, then what is named more exactly, then what is named first; an array where nothing is."""
    best, found = (0.0, -1, 0), ARRAY
    for place, item in enumerate(accept[:LONGEST_ACCEPT].split(",")):
        name, *parameters = (part.strip() for part in item.split(";"))
        name = name.lower()
        form = LINES if name == LINES else ARRAY if name in (ARRAY, "application/*", "*/*") else None
        weight = _weight(parameters)
        key = (weight, 2 if name in (ARRAY, LINES) else 1 if name == "application/*" else 0, -place)
        if form is not None and weight > 0 and key > best:
            best, found = key, form
    return found


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0
