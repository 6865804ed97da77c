"""What docs/spark.md and docs/spark-options.md say is so."""

import contextlib
import io
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.pages import code_blocks
from tests.support.pipeline_server import Served
from tools.spark_docs import PAGE, page
from yirangmq.pipeline.source.options import OPTIONS

ROOT = Path(__file__).parents[2]
PROGRAMS = code_blocks((ROOT / "docs/spark.md").read_text(), "python")


def test_spark_options_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run tools/spark_docs.py"
    for option in OPTIONS:
        assert f"`{option.name}`" in page()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_page_programs_run(spark: SparkSession, served: Served) -> None:
    served.append("trades", '{"price": 71200}')
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for program in PROGRAMS:
            exec(program, {"DATA": served.data, "BROKER": served.url, "spark": spark})
    assert '{"price": 71200}|     1|' in shown.getvalue()
    assert served.payloads("mail") == [b'{"to": "ann"}']
    assert served.values("audit") == [b"sent"]
    [dead] = served.ask("GET", "/v1/queues/mail/dead-letters")["messages"]
    assert dead["failure"]["reasonMessage"] == "no address"
