"""docs/pipelines.md and docs/spark-tutorial.md: their commands are understood, their programs compile; the tutorial as
a whole, and the example, are run where there is time for it."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import code_blocks
from tests.support.pipeline_server import Served
from yirangmq.cli import main
from yirangmq.cli.commands.pipeline import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("pipelines.md", "spark-tutorial.md")}
TUTORIAL = PAGES["spark-tutorial.md"]
TESTED = dict(re.findall(r"<!-- test: (\S+) -->\n```\w+\n(.*?)```", TUTORIAL, re.DOTALL))


def lines(page: str) -> list[str]:
    blocks = code_blocks(PAGES[page], "sh")
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines() if "yirangmq " in line]


@pytest.mark.parametrize("page", PAGES)
def test_pipeline_docs_commands_can_be_parsed(page: str) -> None:
    found = [line for line in lines(page) if line.startswith("yirangmq ")]
    assert len(found) > 5
    for line in found:
        assert callable(main.build().parse_args(shlex.split(line)[1:]).run), line


@pytest.mark.parametrize("page", PAGES)
def test_pipeline_docs_programs_compile(page: str) -> None:
    for program in code_blocks(PAGES[page], "python"):
        compile(program, page, "exec")


def test_pipelines_page_names_every_verb_and_lists_every_job() -> None:
    page = PAGES["pipelines.md"]
    jobs = ("archive", "compact", "housekeep", "report", "audit", "poison", "replay", "redrive", "load")
    assert {*COMMANDS["pipeline"].subcommands} == {
        *jobs,
        "init",
        "dry-run",
        "run",
        "process",
        "explain",
        "list",
        "status",
        "stop",
    }
    assert [job for job in jobs if f"| `{job} " not in page] == []
    assert [verb for verb in COMMANDS["pipeline"].subcommands if verb not in page] == []


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_pipelines_page_lists_every_step() -> None:
    from yirangmq.pipeline import steps

    public = [
        name
        for name, value in vars(steps).items()
        if inspect.isfunction(value) and value.__module__ == steps.__name__ and not name.startswith("_")
    ]
    page = PAGES["pipelines.md"]
    assert [name for name in public if name not in ("check_target", "columns_of") and f"| `{name}(" not in page] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_tutorial_and_its_example_run_as_written(tmp_path: Path) -> None:
    served = Served(tmp_path / "server")
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "YIRANGMQ_BROKER": served.url,
        "YIRANGMQ_SPARK_MASTER": "local[2]",
    }

    def run(script: str) -> str:
        done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        run(TESTED["project"])
        (tmp_path / "sorting.py").write_text(TESTED["sorting.py"])
        said = run(TESTED["stream"])
        [last] = re.findall(r"The last line is `([^`]+)`", TUTORIAL)
        assert last in said
        assert len(served.payloads("small-orders")) + len(served.payloads("large-orders")) == 490
        assert len(served.payloads("small-orders", "dead")) == 10
        said = run(TESTED["pipeline"])
        assert "it fits together" in said
        assert "shop: 3 flows are done, 1,000 rows came in" in said
        assert len(served.payloads("small-orders")) + len(served.payloads("large-orders")) == 980
        assert {"north", "south", "east"} <= {*run(TESTED["table"]).split()}
        run(TESTED["chart"])
        assert "<svg" in (tmp_path / "report.html").read_text()
        example = [sys.executable, str(ROOT / "examples" / "spark_orders.py"), served.url, "orders"]
        shops = subprocess.run(example, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
        assert [line.split(":")[0] for line in shops] == ["east", "north", "south"]
        assert sum(int(line.split()[1]) for line in shops) == 490
    finally:
        served.stop()
