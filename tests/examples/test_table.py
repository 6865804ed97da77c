"""Every example is in the table, has a header, and is run by a test; it imports public names only."""

import ast
import re
from pathlib import Path

import pytest

from tests.examples import test_etcd_examples, test_queue_examples, test_server_examples, test_shell_examples
from tools.examples_docs import EXAMPLES, GROUPS, PAGE, README, example_files, page, read_header, readme

ROOT = Path(__file__).parents[2]
MAX_LINES = 60
RUN_BY = {
    "spark_orders.py": "tests/docs/test_pipelines_page.py::test_spark_tutorial_and_its_example_run_as_written",
    "stomp_two_nodes.py": "tests/failover/test_clients.py",
    "stomp_two_nodes_asyncio.py": "tests/failover/test_clients.py",
}
"""Examples that another test runs, because they need Spark or two nodes."""
LONG = {"publish.c": 110, "stomp_two_nodes.py": 180, "stomp_two_nodes_asyncio.py": 140}
"""Examples that may be longer: C without a library, and clients of two nodes with all their time limits."""
PUBLIC = {"yirangmq", "yirangmq.clock", "yirangmq.cluster", "yirangmq.testing", "yirangmq.pipeline"}
NAMES = [path.name for path in example_files()]


def test_every_example_is_run_by_a_test() -> None:
    run = {test_server_examples.SCHEDULE, *test_queue_examples.OUTPUTS_WITHOUT_SERVER}
    for module in (test_etcd_examples, test_queue_examples, test_server_examples, test_shell_examples):
        run |= module.OUTPUTS.keys()
    assert run.isdisjoint(RUN_BY)
    assert run | RUN_BY.keys() == set(NAMES)
    for name, place in RUN_BY.items():
        file, _, test = place.partition("::")
        text = (ROOT / file).read_text()
        assert Path(name).stem in text
        assert test in text


def test_table_of_examples_has_each_example_once_and_is_current() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == NAMES
    assert README.read_text() == readme(), "run: python tools/examples_docs.py"
    assert PAGE.read_text() == page(), "run: python tools/examples_docs.py"


def test_changelog_states_the_number_of_examples() -> None:
    [number] = re.findall(r"runnable program for each feature, (\d+) in all", (ROOT / "CHANGELOG.md").read_text())
    assert int(number) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_example_header_states_its_feature_and_its_commands(name: str) -> None:
    header = read_header(EXAMPLES / name)
    assert 20 < len(header.feature) < 120
    assert header.feature.endswith(".")
    assert any(f"examples/{name}" in command for command in header.commands)
    assert (EXAMPLES / name).read_text().count("\n") <= LONG.get(name, MAX_LINES)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".py")])
def test_example_imports_public_names_only(name: str) -> None:
    used = set()
    for node in ast.walk(ast.parse((EXAMPLES / name).read_text())):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add(node.module or "")
    ours = {module for module in used if module.split(".")[0] == "yirangmq"}
    assert {module for module in ours if module not in PUBLIC and not module.startswith("yirangmq.pipeline.")} == set()
