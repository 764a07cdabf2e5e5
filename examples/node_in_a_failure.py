"""One of two inputs is cut off for 8 s: tentative results come in time, then the right ones replace them."""

import tempfile
import threading

import holdfast

app, end = holdfast.App("shops", root=tempfile.mkdtemp()), threading.Event()


@app.node(inputs=["north", "south"], output="sales", max_delay="3s")
def sales(orders):
    return orders.selectExpr("window(stime, '1 second') as second").groupBy("second").count()


def sell(shop):
    with holdfast.open(app.root).create(shop, "amount bigint", bucket="500ms").producer() as producer:
        while not end.wait(0.1):
            producer.send({"amount": 1})


[threading.Thread(target=sell, args=[shop]).start() for shop in ("north", "south")]
with app.start(spark_log_level="OFF") as running:
    running.wait_until_stable("2m")
    running.fail("south")
    threading.Timer(8, running.heal, ["south"]).start()
    for row in running.streams.open("sales").subscribe(start="live", tentative=True).rows():
        print(row.type.name, row.stime or "", row.values.get("count", ""))
        if row.type is holdfast.TupleType.REC_DONE:
            end.set()  # Both streams end, and with them the node, its output and this loop.
