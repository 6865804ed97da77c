"""How Spark finds the data source: the top-level module ``pyspark_yirangmq``."""

import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from yirangmq.pipeline import environment

PROGRAM = "import pyspark_yirangmq as module; print(module.__all__, hasattr(module, 'DefaultSource'))"

OLDER = """
class DataSource: ...
class DataSourceReader: ...
class DataSourceStreamReader: ...
class InputPartition: ...
"""
"""What PySpark 4.0 has of ``pyspark.sql.datasource``; the source needs more."""


def test_registration_by_name_is_found_by_the_lookup_of_spark() -> None:
    from pyspark.sql.worker import lookup_data_sources

    out = io.BytesIO()
    lookup_data_sources._main(io.BytesIO(), out)
    assert int.from_bytes(out.getvalue()[:4]) >= 1
    assert b"YirangSource" in out.getvalue()
    assert [check.is_well for check in environment.run_checks() if check.what == 'format("yirangmq")'] == [True]


@pytest.mark.parametrize("datasource", [None, OLDER], ids=["no pyspark", "older pyspark"])
def test_registration_module_defines_nothing_where_spark_is_absent_or_too_old(
    tmp_path: Path, datasource: str | None
) -> None:
    """An import that raises would make Spark skip the data sources of all packages."""
    package = tmp_path / "pyspark"
    (package / "sql").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no pyspark')" if datasource is None else "")
    (package / "sql" / "__init__.py").touch()
    (package / "sql" / "types.py").write_text("class StructType: ...")
    (package / "sql" / "datasource.py").write_text(datasource or "")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


def test_registration_that_defines_nothing_is_reported_by_spark_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_yirangmq", ModuleType("pyspark_yirangmq"))
    [found] = [check for check in environment.run_checks() if check.what == 'format("yirangmq")']
    assert not found.is_well
    assert "the installed PySpark lacks" in found.found
