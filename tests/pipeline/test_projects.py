"""A project of a declarative pipeline as a process: checked, run, run again; a mistake is told by file and line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pipeline_server import Served
from yirangmq.pipeline import project_template

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
PATIENCE = 500


def yirangmq(served: Served, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"YIRANGMQ_BROKER": served.url, "YIRANGMQ_SPARK_MASTER": "local[2]"}
    command = [sys.executable, "-m", "yirangmq", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.slow
def test_pipeline_project_runs_and_resumes_where_it_ended(own: Served, tmp_path: Path) -> None:
    project_template.init("shop", tmp_path)
    orders = project_template.sample_orders()
    own.append("orders", *orders)
    done = yirangmq(own, tmp_path, "pipeline", "run", "shop")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("to_work  completed  500 rows in ") for line in lines), done.stdout
    assert lines[-1] == "shop: 3 flows are done, 1,000 rows came in"
    good = [json.loads(line) for line in orders if "amount" in line]
    large = [order["id"] for order in good if order["amount"] >= 100]
    assert [json.loads(value)["id"] for value in own.payloads("large-orders")] == large
    assert len(own.payloads("small-orders")) == len(good) - len(large)
    assert len(own.payloads("small-orders", "dead")) == len(orders) - len(good) == 10

    [card] = own.ask("GET", "/v1/pipelines")["pipelines"]
    assert (card["pipeline"], card["kind"], card["state"], card["rows"]) == ("shop", "pipeline", "done", 1000)

    own.append("orders", '{"id": 501, "shop": "west", "amount": 1000}')
    again = yirangmq(own, tmp_path, "pipeline", "run", "shop", "--json")
    assert again.returncode == 0, again.stderr
    flows = {flow["flow"]: flow for flow in json.loads(again.stdout)["flows"]}
    assert flows["to_work"]["rows"] == flows["good_orders"]["rows"] == 1
    assert [json.loads(value)["id"] for value in own.payloads("large-orders")] == [*large, 501]


def test_pipeline_project_dry_run_names_the_place_of_a_wrong_definition_and_writes_nothing(
    own: Served, tmp_path: Path
) -> None:
    project_template.init("shop", tmp_path)
    own.append("orders", *project_template.sample_orders())
    path = tmp_path / "shop" / "transformations" / "orders.py"
    path.write_text(path.read_text().replace('"queue:small-orders",', '"small-orders",'))
    done = yirangmq(own, tmp_path, "pipeline", "dry-run", "shop", "--json")
    assert done.returncode == 2, done.stderr
    complaint = json.loads(done.stderr)
    assert complaint["field"].startswith("transformations/orders.py:")
    assert "'small-orders' is not queue:NAME" in complaint["error"]
    assert own.ask("GET", "/v1/status")["queues"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "place", "words"),
    [
        ("sum(amount)", "sum(amuont)", "transformations/totals.sql:2", "shop_totals: A column"),
        ("sum(amount), 2)", "sum(amount, 2", "transformations/totals.sql:3", "Syntax error"),
    ],
    ids=["column", "syntax"],
)
def test_pipeline_project_dry_run_names_file_and_line_of_wrong_sql(
    own: Served, tmp_path: Path, right: str, wrong: str, place: str, words: str
) -> None:
    project_template.init("shop", tmp_path)
    path = tmp_path / "shop" / "transformations" / "totals.sql"
    path.write_text(path.read_text().replace(right, wrong))
    done = yirangmq(own, tmp_path, "pipeline", "dry-run", "shop", "--json")
    assert done.returncode == 2, done.stderr
    complaint = json.loads(done.stderr)
    assert complaint["field"] == place
    assert words in complaint["error"]
