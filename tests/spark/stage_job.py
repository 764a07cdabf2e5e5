"""An aggregate as a process of its own, to be run on a cluster whose executors are killed."""

from __future__ import annotations

import argparse
import os

from holdfast.operators.functions import avg, count, sum_
from holdfast.operators.windows import count_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import session
from holdfast.spark.flow import flow


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("checkpoint")
    parser.add_argument("--master", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--rows", default="100")
    given = parser.parse_args()
    spark = session("holdfast-stage", master=given.master, spark_task_maxFailures="8", spark_executor_memory="700m",
                    spark_executor_extraJavaOptions=os.environ.get("SPARK_SUBMIT_OPTS", ""),
                    spark_cores_max="2")  # fmt: skip
    spark.sparkContext.setLogLevel("OFF")
    flowing = flow(spark, "a", root=given.root, partitions=2, maxRowsPerBatch=given.rows)
    flowing = flowing.aggregate(count(), sum_("value"), avg("value"), window=count_window(10), by="key",
                                checkpoint=continuous(period="1s", slow=0))  # fmt: skip
    query = flowing.write(
        given.output, checkpoint_location=given.checkpoint, trigger={"availableNow": True}, bucket="1s"
    )
    query.awaitTermination()
    print("finished", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
