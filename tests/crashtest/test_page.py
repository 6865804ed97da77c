"""docs/power-cuts.md: the two small programs on it do what the page says."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import code_blocks

pytestmark = pytest.mark.process
PAGE = Path(__file__).parents[2] / "docs" / "power-cuts.md"
ENOUGH = 50


def programs(folder: Path) -> tuple[Path, Path]:
    plug, plugged = code_blocks(PAGE.read_text(), "python")
    (folder / "plug.py").write_text(plug)
    (folder / "plugged.py").write_text(plugged)
    return folder / "plug.py", folder / "plugged.py"


def test_power_cut_page_programs_count_lost_messages(tmp_path: Path) -> None:
    plug, plugged = programs(tmp_path)
    store = f"sqlite:{tmp_path / 'queue.db'}"
    with subprocess.Popen([sys.executable, plug, store], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        confirmed = "".join(process.stdout.readline() for _ in range(ENOUGH))
        process.kill()
        confirmed += process.stdout.read()
    checked = subprocess.run([sys.executable, plugged, store], input=confirmed, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.endswith(", 0 lost\n")
    missing = subprocess.run(
        [sys.executable, plugged, store], input=f"{confirmed}never-there\n", capture_output=True, text=True
    )
    assert missing.returncode == 1
    assert missing.stdout.endswith(", 1 lost\n")
