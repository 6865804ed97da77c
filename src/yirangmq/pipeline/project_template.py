"""Project template of a declarative pipeline: topic, schema, routing, a table, sample data and a test.

``init`` writes the files into a new folder; everything in them is meant to be edited. Needs no Spark."""

import json
import random
from pathlib import Path

from yirangmq.core.errors import BadInput, WrongState
from yirangmq.pipeline.run_registry import NAME

SAMPLES = 500
SPEC = """# A pipeline of Spark's; 'yirangmq pipeline run' runs it, 'yirangmq pipeline dry-run' checks it.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
ORDERS = '''"""From the topic to the queues: parse, check against the schema, send each order where it belongs."""

import json
import os
from pathlib import Path

from pyspark import pipelines as dp

from yirangmq.pipeline import steps

BROKER = os.environ.get("YIRANGMQ_BROKER", "http://127.0.0.1:8080")
SCHEMA = json.loads(Path("order.schema.json").read_text())


@dp.temporary_view
def orders():
    """Records of the topic, with the members of a payload as columns and what is wrong with it in ``errors``."""
    records = (
        spark.readStream.format("yirangmq")  # noqa: F821  (Spark puts ``spark`` here)
        .option("broker", BROKER)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    parsed = steps.parse_envelope(records, "id bigint, shop string, amount double")
    return steps.validate(parsed, SCHEMA)


dp.create_sink("work", "yirangmq", {"broker": BROKER})


@dp.append_flow(target="work", name="to_work")
def to_work():
    """Large orders to one queue, the others to another, bad ones to the dead letters with the reason."""
    routed = steps.route(
        spark.readStream.table("orders"),  # noqa: F821
        {"queue:large-orders": "payload.amount >= 100"},
        "queue:small-orders",
    )
    return steps.for_sink(routed, columns=["target", "reason"])


@dp.table
def good_orders():
    """The orders themselves, kept as a table."""
    good = spark.readStream.table("orders").where("size(errors) = 0")  # noqa: F821
    return good.selectExpr("payload.id", "payload.shop", "payload.amount", "timestamp")
'''
TOTALS = """-- What each shop sold; made anew from the table by each run.
CREATE MATERIALIZED VIEW shop_totals AS
SELECT shop, count(*) AS orders, round(sum(amount), 2) AS amount
FROM good_orders
GROUP BY shop;
"""
SCHEMA = {
    "type": "object",
    "required": ["id", "shop", "amount"],
    "properties": {
        "id": {"type": "integer"},
        "shop": {"type": "string", "minLength": 1},
        "amount": {"type": "number", "exclusiveMinimum": 0},
    },
}
TEST = '''"""The steps on a few rows, without a server: pytest tests"""

import pytest

from yirangmq.pipeline import steps
from yirangmq.pipeline.session import session


@pytest.fixture(scope="session")
def spark():
    made = session("test", "local[1]")
    yield made
    made.stop()


def test_a_bad_order_goes_to_the_dead_letters(spark):
    rows = spark.createDataFrame([('{"id": 1, "amount": 250}',), ("no json",)], "value string")
    parsed = steps.parse_envelope(rows, "id bigint, amount double")
    routed = steps.route(parsed, {"queue:large": "payload.amount >= 100"}, "queue:small")
    assert [row["target"] for row in routed.collect()] == ["queue:large", "dlq:small"]
'''
README = """# {name}

A topic `orders`, checked, sent to the queues `large-orders` and `small-orders`, and counted. In the folder above:

    yirangmq pipeline load --table {name}/sample/orders.jsonl --format text --to topic:orders --name sample
    yirangmq pipeline dry-run {name}      # check it: nothing is read or written
    yirangmq pipeline run {name}          # run it: what is new since the last run, and then it ends
    yirangmq status                       # where the orders are now
    pytest {name}/tests                   # the steps on a few rows, without a server

`sample/orders.jsonl` holds {samples} orders, a few of them bad on purpose; any program may publish more to the topic.
`YIRANGMQ_BROKER` says where the server is (http://127.0.0.1:8080).
"""


def init(name: str, parent: Path) -> list[Path]:
    """Write the files of a project and return their paths. ``WrongState`` if the folder exists; it is left
    unchanged."""
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} must be letters, digits and ._-, at most 100", field="name")
    folder = (parent / name).absolute()
    if folder.exists():
        raise WrongState(f"{folder} is there already", field="name")
    files = {
        "spark-pipeline.yml": SPEC.format(name=name, storage=(folder / "storage").as_uri()),
        "order.schema.json": json.dumps(SCHEMA, indent=2) + "\n",
        "transformations/orders.py": ORDERS,
        "transformations/totals.sql": TOTALS,
        "sample/orders.jsonl": "".join(line + "\n" for line in sample_orders()),
        "tests/test_orders.py": TEST,
        "README.md": README.format(name=name, samples=SAMPLES),
        ".gitignore": ".yirangmq/\nstorage/\n__pycache__/\n",
    }
    made = []
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        made.append(target)
    return made


def sample_orders(count: int = SAMPLES) -> list[str]:
    """Return the sample lines, the same at each call. Every 50th order has no amount, every 100th line is no JSON."""
    chance = random.Random(1)
    lines = []
    for n in range(1, count + 1):
        order = {"id": n, "shop": chance.choice(("north", "south", "east")), "amount": chance.randint(100, 30000) / 100}
        if n % 50 == 0:
            del order["amount"]
        lines.append("{broken" if n % 100 == 0 else json.dumps(order))
    return lines
