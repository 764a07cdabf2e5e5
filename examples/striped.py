"""A stream of four stripes: dealt by key, written side by side, read as one in bucket order."""

import tempfile
from datetime import UTC, datetime, timedelta

import holdfast

store = holdfast.open(tempfile.mkdtemp())
calls = store.create_striped("calls", "caller string, at timestamp", stripes=4, stripe_by="caller", bucket="1s")
start = datetime(2026, 3, 1, 12, tzinfo=UTC)

with calls.producer(stime="at", slack="2s") as producer:  # Or each stripe by a process of its own.
    for n in range(60):
        producer.send({"caller": f"c{n % 7}", "at": start + timedelta(seconds=n / 10)}, seq=n)

for stripe in calls.stripes:  # Ordinary streams: a caller is in one of them.
    print(stripe.name, sorted({row.values["caller"] for row in stripe.subscribe().rows()}))

rows = list(calls.subscribe().rows())
seconds = [row.stime.second for row in rows]
print(len(rows), "calls,", "in order" if seconds == sorted(seconds) else "mixed up")
rest = calls.subscribe(after=rows[41].position)
print(len(list(rest.rows())), "behind the 42nd")
