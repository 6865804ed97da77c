"""Spark: a topic as a DataFrame, grouped and counted.

    pip install 'yirangmq[spark]'
    yirangmq serve &
    python examples/spark_orders.py http://127.0.0.1:8080 orders

Needs Java 17 or 21."""

import sys

from pyspark.sql import functions as F

from yirangmq.pipeline import steps
from yirangmq.pipeline.session import session

broker, topic = sys.argv[1:3]
spark = session("orders", "local[*]")
records = spark.read.format("yirangmq").option("broker", broker).option("subscribe", topic).load()
orders = steps.parse_envelope(records, "shop string, amount double").where("size(errors) = 0")
paid = orders.where("payload.amount is not null").groupBy("payload.shop")
by_shop = paid.agg(F.count("*").alias("orders"), F.sum("payload.amount").alias("sum"))
for row in by_shop.orderBy("shop").collect():
    print(f"{row['shop']}: {row['orders']} orders, {row['sum']:.2f}")
spark.stop()
