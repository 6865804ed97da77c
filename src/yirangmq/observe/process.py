"""What this process costs."""

import os
from pathlib import Path

STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Memory in use now; None where the system does not say."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
