"""The commands of the page about processors are run, its hook is one, and every check and kind of field is named."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import yirangmq
from tests.support.pages import code_blocks
from yirangmq.config.config import load
from yirangmq.core.payload_check_parser import COUNTED, READERS, WRITTEN
from yirangmq.core.payload_checks import KINDS, ROOTS
from yirangmq.core.processor import read_chain

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "processor.md").read_text()


def test_processor_page_explains_every_check_and_kind_of_field() -> None:
    assert re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE) == [*READERS]
    assert [word for word in (*KINDS, *ROOTS, *WRITTEN, *COUNTED) if f"`{word}`" not in PAGE] == []


def test_processor_page_settings_and_policy_can_be_read() -> None:
    texts = re.findall(r"```text\n(\{.*?\}|\"processors.*?)\n```", PAGE, re.DOTALL)
    assert len(texts) == 2
    settings = json.loads(f"{{{texts[0]}}}")
    assert [*load(settings, {}, {}).policy_defaults.chains] == ["*", "atmh"]
    assert read_chain(json.loads(texts[1]), "atmh") is not None


def test_integrity_digests_are_on_in_the_gateway_configurations() -> None:
    for name in ("gateway-1.json", "gateway-2.json"):
        config = load(json.loads((ROOT / "deploy" / "pair" / name).read_text()), {}, {})
        assert config.policy_defaults.chains["*"].integrity


@pytest.mark.process
def test_processor_page_commands_do_as_the_page_says(tmp_path: Path) -> None:
    folder = str(Path(sys.executable).parent)
    script = "set -e\n" + "\n".join(code_blocks(PAGE, "sh"))
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "YIRANGMQ_DB": str(tmp_path / "queue.db"), "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "good.dat: fits, 8 bytes, SHA-256 " in done.stdout
    assert "bad.dat: unfit: payload: is not euc-kr: byte 3 (ff) cannot be read" in done.stdout
    assert done.stdout.count("exit code 2") == 2
    assert "yirangmq: unfit: payload: is not euc-kr: byte 3 (ff) cannot be read" in done.stderr


@pytest.mark.process
def test_processor_page_hook_accepts_and_refuses_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = code_blocks(PAGE, "python")
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "rules.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    with yirangmq.open(f"sqlite:{tmp_path / 'jobs.db'}", hooks=["bank"]) as queues:
        hook: dict[str, Any] = {"hook": "bank.rules:check", "timeoutSec": 60}
        queues.set_policy("atmh", {"processor": {"hooks": [hook]}})
        queues.publish("atmh", {"amount": 1})
        with pytest.raises(yirangmq.Unfit, match=r"^payload\.amount: must be positive"):
            queues.publish("atmh", {"amount": 0})
        with pytest.raises(yirangmq.Unfit, match="this bank is closed"):
            queues.publish("atmh", yirangmq.NewMessage(payload={"amount": 1}, attributes={"bank": "999"}))
