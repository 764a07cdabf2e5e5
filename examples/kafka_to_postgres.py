"""Orders of three shops: from three topics of Kafka into a table of PostgreSQL that is corrected in place.

make example-kafka                                              # with a broker and a database of its own
python examples/kafka_to_postgres.py BROKER:9092 postgresql://… # with yours; it needs topics north, south and west
"""

import sys
import time
from collections import Counter
from threading import Thread

import psycopg
from confluent_kafka import Producer
from pyspark.sql import functions as F

import holdfast
from holdfast.sinks import postgres

BROKERS, DATABASE = sys.argv[1:]
SHOPS = ["north", "south", "west"]
app = holdfast.App("shops", root="shops/")
for shop in SHOPS:
    app.source(shop, holdfast.kafka(BROKERS, topic=shop), schema="item bigint", bucket="1s")
app.sink("sales", postgres(DATABASE, "sales", key=["until"], tentative=True))


@app.node(inputs=SHOPS, output="sales", max_delay="3s", stime="until")
def sales(orders):
    return orders.groupBy(F.window("stime", "3 seconds")).count().selectExpr("window.end AS until", "count AS orders")


def sell():
    """Ten orders a second in each shop, counted by the end of their three seconds."""
    producer = Producer({"bootstrap.servers": BROKERS, "enable.idempotence": True})
    while True:
        now_ms = time.time_ns() // 1_000_000
        for shop in SHOPS:
            producer.produce(shop, b'{"item": 1}', timestamp=now_ms)
        sold[now_ms // 3000 * 3 + 3] += len(SHOPS)
        time.sleep(0.1)


def wait(title, done):
    """Print the table as soon as it is as it should be."""
    while not done(rows := table.execute("select until, orders, tentative from sales order by until").fetchall()):
        time.sleep(0.2)
    print(f"\n{title}", *(f"{at:%H:%M:%S} {n:4} {'tentative' * t}" for at, n, t in rows[-7:]), sep="\n  ", flush=True)


sold = Counter()
with app.start(spark_log_level="OFF") as running, psycopg.connect(DATABASE, autocommit=True) as table:
    Thread(target=sell, daemon=True).start()
    while running.status()["sinks"][0]["state"] != "RUNNING":  # Then the table is there.
        time.sleep(0.1)
    wait("All three shops are read:", lambda rows: len(rows) > 3)
    running.fail("west")
    wait("West is cut off, and news keep coming:", lambda rows: sum(tentative for *_, tentative in rows) > 2)
    running.heal("west")
    wait("West is back; all is right:", lambda rows: all(n == sold[at.timestamp()] and not t for at, n, t in rows))
