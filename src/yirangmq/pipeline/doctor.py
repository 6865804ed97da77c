"""``spark doctor``: one look at everything that Spark needs here, each with what was found.

Knows: names and versions. Does not know: the command line."""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.core.errors import QueueError
from yirangmq.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = {"pyspark": (4, 2), "pandas": (2, 2), "pyarrow": (18,), "protobuf": (6, 33), "grpcio": (), "pyyaml": ()}
BELOW = {"pyspark": (4, 4), "pandas": (3,)}
EXTRA = {"jsonschema-rs": "for steps.validate: pip install 'yirangmq[schema]'"}


class Check(NamedTuple):
    what: str
    is_well: bool
    found: str
    is_needed: bool = True


def look(broker: str | None = None) -> list[Check]:
    found = [_java(), *(_package(name) for name in PACKAGES), *(_extra(name) for name in EXTRA), _source()]
    return [*found, _broker(broker)] if broker else found


def _java() -> Check:
    try:
        java = find_java()
    except QueueError as error:
        return Check("java", False, str(error))
    return Check("java", True, f"{java.version} ({java.origin}: {java.home})")


def _package(name: str) -> Check:
    try:
        there = version(name)
    except PackageNotFoundError:
        return Check(name, False, "missing: pip install 'yirangmq[spark]'")
    numbers = tuple(int(part) for part in there.split(".")[:3] if part.isdecimal())
    least, below = PACKAGES[name], BELOW.get(name)
    if numbers < least or (below is not None and numbers >= below):
        wanted = f">={'.'.join(map(str, least))}" + (f",<{'.'.join(map(str, below))}" if below else "")
        return Check(name, False, f"{there}, and {wanted} is wanted")
    return Check(name, True, there)


def _extra(name: str) -> Check:
    try:
        return Check(name, True, version(name), False)
    except PackageNotFoundError:
        return Check(name, False, f"missing, {EXTRA[name]}", False)


def _source() -> Check:
    is_there = find_spec("pyspark_yirangmq") is not None
    return Check(
        'format("yirangmq")', is_there, "found by Spark" if is_there else "pyspark_yirangmq is not on the path"
    )


def _broker(address: str) -> Check:
    from yirangmq.pipeline.source.broker import HttpBroker

    broker = None
    try:
        broker = HttpBroker(address, None, 4)
        broker.ask("GET", "/v1/health")
    except Exception as error:
        return Check("broker", False, str(error))
    finally:
        if broker is not None:
            broker.close()
    return Check("broker", True, address)


def try_out(spark: "SparkSession") -> list[Check]:
    """Ten rows through Java and back, and through the Python of the tasks."""
    from pyspark.sql import functions as F

    rows = spark.range(10)
    python = F.udf(lambda _: sys.version.split()[0], "string")
    of_tasks = {row[0] for row in rows.select(python("id")).distinct().collect()}
    here = sys.version.split()[0]
    return [
        Check("session", rows.count() == 10, f"Spark {spark.version} on {spark.sparkContext.master}"),
        Check("python of tasks", of_tasks == {here}, f"{', '.join(sorted(of_tasks))}; here {here}"),
        Check(
            "push-down", spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true", "filters go to the source"
        ),
    ]
