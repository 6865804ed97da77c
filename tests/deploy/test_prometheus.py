"""The alert rules of Prometheus and the dashboard of Grafana: each expression is valid and names what the server has.

promtool checks the syntax and plays the series of ``yirangmq.rules.test.yml`` against the rules."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.source_tree import ROOT
from yirangmq.observe.prometheus import METRICS

FOLDER = ROOT / "deploy/prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "yirangmq.rules.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/yirangmq.json").read_text())
UNPACKED = ROOT / ".tools/prometheus/promtool"
PROMTOOL = shutil.which("promtool") or (str(UNPACKED) if UNPACKED.exists() else "")
with_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not here; tools/promtool.sh fetches it")
OF_PROMETHEUS = {"job", "instance", "pair", "le"}
"""Labels that Prometheus or its configuration adds; those of a metric are in docs/metrics.md."""


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def variables() -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield (name, expression) of each alert and each target of a panel; variables of Grafana have a value."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m")
            yield f"{panel['title']} {target['refId']}", re.sub(r"\$\w+", "x", text)


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run([PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_alert_rules_are_valid_and_the_scrape_configuration_loads_them() -> None:
    promtool("check", "rules", "--lint-fatal", "yirangmq.rules.yml")
    promtool("check", "config", "prometheus.yml")


@with_promtool
def test_alert_rules_are_raised_by_the_series_of_their_tests() -> None:
    promtool("test", "rules", "yirangmq.rules.test.yml")


@with_promtool
def test_grafana_expressions_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, (_, text) in enumerate(expressions())]
    assert len(rules) > 50
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", "--lint-fatal", tmp_path / "panels.yml")


def test_alert_rules_have_a_test_and_a_text_each() -> None:
    names = [rule["alert"] for rule in RULES]
    tests = yaml.safe_load((FOLDER / "yirangmq.rules.test.yml").read_text())["tests"]
    raised = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert len(names) == len(set(names))
    assert raised == set(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]


def test_alert_rules_and_grafana_name_only_metrics_that_the_server_has() -> None:
    series = {
        name + tail
        for name, (kind, _) in METRICS.items()
        for tail in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    for name, text in expressions():
        assert set(re.findall(r"\byirangmq_\w+", text)) <= series, name
    queries = [variable["definition"] for variable in variables().values() if variable["type"] == "query"]
    assert {found for text in queries for found in re.findall(r"\byirangmq_\w+", text)} <= series


def test_alert_rules_and_grafana_name_only_labels_that_are_documented() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    listed = re.findall(r"labels? ((?:`\w+`(?:, | and )?)+)", page)
    known = {label for some in listed for label in re.findall(r"`(\w+)`", some)} | OF_PROMETHEUS
    assert {"queue", "reason", "code", "subscriber"} <= known
    for name, text in expressions():
        matched = re.findall(r"(\w+)=~?\"", text)
        grouped = [label for some in re.findall(r"(?:by|on) \(([^)]*)\)", text) for label in some.split(", ")]
        assert {*matched, *grouped} <= known, name
    legends = [target["legendFormat"] for panel in panels() for target in panel["targets"]]
    assert {label for legend in legends for label in re.findall(r"{{(\w+)}}", legend)} <= known


def test_grafana_dashboard_has_panels_with_a_title_a_text_and_a_place_of_their_own() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    titles = {(panel["title"], panel["gridPos"]["y"]) for panel in everything}
    assert len(titles) == len(everything)
    assert [panel["title"] for panel in panels() if not panel["description"]] == []
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_grafana_dashboard_uses_only_its_own_variables_and_data_source() -> None:
    text = json.dumps(DASHBOARD)
    used = set(re.findall(r"\$\{?([a-z]\w*)", text))
    assert used == variables().keys()
    sources = {
        found["uid"]
        for panel in panels()
        for found in (panel["datasource"], *[t["datasource"] for t in panel["targets"]])
    }
    assert sources == {"${datasource}"}
