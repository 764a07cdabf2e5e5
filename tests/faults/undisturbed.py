"""The queries of a deployment over its sources, one after the other on plain Spark: what a run without failures gives.

python -m tests.faults.undisturbed net.yaml FOLDER BUCKET
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from holdfast.host.deployment import load_deployment
from holdfast.spark import read_stream
from holdfast.spark.session import session


def main(file: str, root: str, bucket: str) -> None:
    deployment = load_deployment(file)
    diagram = deployment.load_app().diagram()
    spark = session("undisturbed", spark_sql_shuffle_partitions="1")
    spark.sparkContext.setLogLevel("OFF")
    for node in diagram.nodes:
        roots = [
            deployment.host(deployment.sources[s][0]).root if s in deployment.sources else root for s in node.inputs
        ]
        frame = read_stream(spark, *node.inputs, boundaries="exact", roots=json.dumps([str(r) for r in roots]),
                            streamColumn=str(len(node.inputs) > 1).lower())  # fmt: skip
        writer = node.function(frame).writeStream.format("holdfast").option("root", root).option("create", "true")
        writer = writer.option("bucket", bucket).option("checkpointLocation", str(Path(root) / f".{node.name}"))
        writer.trigger(availableNow=True).start(node.output).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
