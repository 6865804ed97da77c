"""Writes tests/golden/wire/frames.txt from tests/support/frame_examples.py. Run it when a frame is added; a line that
changes is a break of the format, and needs another version."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.frame_examples import EXAMPLES, spelled  # noqa: E402

PAGE = ROOT / "tests" / "golden" / "wire" / "frames.txt"


def page() -> str:
    width = max(len(example.name) for example in EXAMPLES)
    return "".join(f"{example.name:<{width}}  {spelled(example.bytes())}\n" for example in EXAMPLES)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
