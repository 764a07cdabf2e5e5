"""Busy sources of a network, counted over three monitors.

python examples/netmon.py --seconds 36       # all in one process: monitor3 is cut off for a third of the time
python examples/netmon.py --feed FOLDER      # the monitors alone, for examples/netmon.yaml; Ctrl-C ends them
"""

import argparse
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as F

import holdfast

MONITORS = ["monitor1", "monitor2", "monitor3"]

app = holdfast.App("netmon", root="streams/")


@app.node(inputs=MONITORS, output="active_sources", max_delay="5s", replicas=2)
def active_sources(connections):
    return connections.groupBy(F.window("stime", "2 seconds"), "source").count().where("count > 100")


def monitor(store, name, end):
    """One producer: 40 connections every 100 ms, some sources much busier than others."""
    stream = store.create(name, "source string, bytes bigint", bucket="1s", exist_ok=True)
    chance = random.Random(name)
    producer = stream.producer()
    while not end.is_set():
        busy = [min(int(chance.expovariate(0.5)), 9) for _ in range(40)]
        producer.send_many([{"source": f"10.0.0.{n}", "bytes": chance.randrange(40, 1500)} for n in busy])
        end.wait(0.1)
    producer.close(end=False)  # The stream stays open: the next run goes on.


def watch(stream, running, seconds):
    """Print what a client gets; cut monitor3 off after a third of the time, heal it after two thirds."""
    begun, orders, seen, standing = time.monotonic(), ["fail", "heal"], Counter(), 0
    with stream.subscribe(start="live", tentative=True) as client:
        while (passed := time.monotonic() - begun) < seconds or (standing and passed < seconds + 60):
            if orders and passed > seconds * (3 - len(orders)) / 3:
                order = orders.pop(0)
                getattr(running, order)("monitor3")
                print(f"--- {order} monitor3", flush=True)
            for batch in client.poll():
                for row in client.rows_of(batch):
                    seen[row.type.name] += 1
                    standing = 0 if row.type.name == "REC_DONE" else standing + (row.type.name == "TENTATIVE")
                    values = f"{row.values['source']} {row.values['count']}" if row.values.get("source") else ""
                    print(f"{row.type.name:10} {str(row.stime or '')[11:19]:8} {values}", flush=True)
            time.sleep(0.05)
    print(", ".join(f"{name} {count}" for name, count in seen.items()), "- all corrected" if not standing else "")
    return standing == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=36)
    parser.add_argument("--feed", metavar="FOLDER")
    asked = parser.parse_args()
    if not asked.feed:
        # This run leaves nothing behind. An application of yours keeps the folder that it names above.
        app.root = Path(tempfile.mkdtemp(prefix="netmon-"))
    store, end = holdfast.open(asked.feed or app.root), threading.Event()
    monitors = [threading.Thread(target=monitor, args=(store, name, end)) for name in MONITORS]
    for thread in monitors:
        thread.start()
    good = True
    try:
        if asked.feed:
            threading.Event().wait()
        with app.start(spark_log_level="OFF") as running:  # Spark is chatty when queries are stopped.
            running.wait_until_stable("2m")
            good = watch(store.open("active_sources"), running, asked.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        end.set()
        for thread in monitors:
            thread.join()
        if not asked.feed:
            shutil.rmtree(app.root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
