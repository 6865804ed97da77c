"""The page about alerts has every rule with its limit, every notice, every member; its settings can be read and its
commands run."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.server_process import daemon, run_command
from yirangmq.alerts.monitor import alert_document
from yirangmq.config.config import load
from yirangmq.core.alert_rules import RULES
from yirangmq.core.alert_settings import KINDS, read_settings
from yirangmq.core.alerts import COUNTER_NAMES, STORM, Alert, Level, NoticeKind
from yirangmq.core.errors import BadInput

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
JSON = [json.loads(text) for text in code_blocks(PAGE, "json")]


def test_alerts_page_lists_every_rule_with_its_limit_levels_and_text() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    told = {name: cells for name, *cells in rows if name in RULES}
    for name, rule in RULES.items():
        limit = f"{rule.limit:g} {rule.unit}" if rule.limit is not None else "–"
        about = re.sub(r"\[(\w+)\]\(\S+\)", r"\1", told[name][2])
        assert [told[name][0], told[name][1], about] == [limit, rule.levels, rule.about]
    assert f"| `{STORM}` |" in PAGE


def test_alerts_page_lists_every_notice_sink_kind_and_counter() -> None:
    assert re.findall(r"^\| `(\w+)` \| (?:the fault was found|it |an operator)", PAGE, re.MULTILINE) == [*NoticeKind]
    assert [kind for kind in KINDS if f"| `{kind}` |" not in PAGE] == []
    assert [name for name in COUNTER_NAMES if f"`{name}`" not in PAGE] == []


def test_alerts_page_settings_load_and_its_defaults_are_those_in_force() -> None:
    settings, _ = JSON
    assert [sink.kind for sink in load(settings, {}, {}).alerts.sinks] == ["email", "webhook", "command"]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
    defaults = {
        name: json.loads(text.strip("` ")) for name, text in rows if text.strip("` ") not in ("–",) and _is_json(text)
    }
    assert read_settings(defaults) == read_settings({})
    assert len(defaults) == 8
    with pytest.raises(BadInput, match="known: ") as found:
        read_settings({"?": 1})
    named = re.findall(r"known: (.+)", str(found.value))[0].split(", ")
    assert [name for name in named if f"| `{name}` |" not in PAGE] == []


def _is_json(text: str) -> bool:
    try:
        json.loads(text.strip("` "))
    except ValueError:
        return False
    return True


def test_alerts_page_notice_has_exactly_the_members_of_a_notice() -> None:
    told = JSON[1]
    alert = Alert(id="1", rule="a", subject="", level=Level.INFO, text="", opened_at=0, seen_at=0)
    assert list(told) == ["notice", "at", "node", "alert"]
    assert sorted(told["alert"]) == sorted(alert_document(alert))


@pytest.mark.process
def test_alerts_page_commands_run(tmp_path: Path) -> None:
    [block] = code_blocks(PAGE, "sh")
    first, *commands = block.splitlines()
    assert first == "yirangmq serve &"
    with daemon(tmp_path, data="yirang-data"):
        for command in commands:
            done = run_command(tmp_path, *shlex.split(command)[1:])
            assert done.returncode == 0, done.stderr
