"""A stream that is filled by a streaming source of Spark, here a folder of JSON files, each row exactly once."""

import itertools
import json
import tempfile
from pathlib import Path

import holdfast

app = holdfast.App("pages", root=tempfile.mkdtemp())
clicks = Path(tempfile.mkdtemp())
for n in range(3):
    rows = [{"page": f"/p{k}", "ts": f"2026-03-01T12:00:{n * 2 + k:02}Z"} for k in range(2)]
    (clicks / f"{n}.json").write_text("\n".join(map(json.dumps, rows)))

app.source(
    "clicks", lambda spark: spark.readStream.schema("page string, ts timestamp").json(str(clicks)),
    stime="ts", slack="10s", idle="2s", bucket="1s",
)  # fmt: skip


@app.node(inputs=["clicks"], output="pages", max_delay="5s")
def pages(clicks):
    return clicks.select("stime", "page")


with app.start(spark_log_level="OFF") as running:
    running.wait_until_stable("2m")
    for row in itertools.islice(running.streams.open("pages").subscribe().rows(timeout="1m"), 6):
        print(row.stime, row.values["page"])
