"""``spark doctor`` and ``spark warmup``."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import commands
from tests.support.pipeline_server import Served
from yirangmq.pipeline import environment

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_spark_doctor_finds_everything_installed_and_names_an_absent_broker(
    spark: SparkSession, served: Served, capfdbinary: Any
) -> None:
    command = commands.made(capfdbinary)
    found = {one["what"]: one for one in command(f"spark doctor --broker {served.url} --json").json["checks"]}
    assert {"java", "pyspark", "pandas", "pyarrow", "protobuf", "broker", "session", "python of tasks"} <= found.keys()
    assert all(one["is_well"] for one in found.values()), found
    assert "Spark is ready" in command("spark doctor --quick").out
    told = command("spark doctor --quick --broker http://127.0.0.1:9 --json", code=11).json
    assert [one["what"] for one in told["checks"] if not one["is_well"]] == ["broker"]


def test_spark_doctor_names_a_package_that_is_missing_or_of_a_wrong_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.PACKAGES, "no-such-package", ())
    monkeypatch.setitem(environment.BELOW, "pyspark", (4,))
    wrong = {one.what: one.found for one in environment.run_checks() if not one.is_well and one.is_needed}
    assert wrong.keys() == {"no-such-package", "pyspark"}
    assert "pip install 'yirangmq[spark]'" in wrong["no-such-package"]
    assert "is needed" in wrong["pyspark"]


@pytest.mark.slow
def test_spark_warmup_file_is_made_used_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    from yirangmq.cli.commands.pipeline.common import quick_start

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = commands.made(capfdbinary)
    assert quick_start() == {}
    made = command("spark warmup --json").json
    assert made["bytes"] == Path(made["file"]).stat().st_size > 1 << 20
    assert made["file"] in quick_start()["spark.driver.extraJavaOptions"]
    assert command("spark warmup --remove --json").json["removed"] == 1
    assert environment.remove() == 0
