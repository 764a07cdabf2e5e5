"""One thread that does not wait for the disk after each row: many rows share one sync, each has its own answer."""

import tempfile
import time

import holdfast

stream = holdfast.open(tempfile.mkdtemp()).create("ticks", "n bigint", bucket="1s")
with stream.producer(id="sensor-7") as producer:
    begun = time.perf_counter()
    futures = [producer.send_async({"n": n}, seq=n) for n in range(1, 5_001)]
    futures[-1].result()  # Durable, and so is everything before it.
    print(f"{len(futures) / (time.perf_counter() - begun):,.0f} durable rows a second from one thread")
    producer.send({"n": 5_000}, seq=5_000)  # A retry is harmless: this number was sent.
print(sum(batch.num_rows for batch in stream.subscribe()), "rows in the stream")
