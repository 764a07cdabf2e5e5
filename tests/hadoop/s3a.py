"""What a session needs to have checkpoints in S3, and a server for them on loopback.

    python -m tests.hadoop.s3a --fetch

brings S3A, the parts of Amazon's client that it uses (all of that would be 700 MB), and Spark's module for object
stores into the user's cache (`mvn` is needed). The server is moto's.
"""

from __future__ import annotations

import sys

from tests.maven import Artifact

_SDK = "2.35.4"
#: S3A of the Hadoop that PySpark brings. Of what the client depends on, Spark has some in versions of its own.
JARS = Artifact(
    "s3a", "org.apache.hadoop", "hadoop-aws", "3.5.0", alone=True,
    without=("netty-[!n]*", "slf4j-*", "commons-codec-*"),
    also=(
        # By which it reads unless it is told otherwise.
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1!",
        *(f"software.amazon.awssdk:{part}:{_SDK}" for part in ("s3", "s3-transfer-manager", "sts")),
        # Spark 4.3 has not published its own; that of 4.1 fits.
        "org.apache.spark:spark-hadoop-cloud_2.13:4.1.2!",
    ),
)  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] != ["--fetch"]:
        sys.exit("usage: python -m tests.hadoop.s3a --fetch")
    sys.exit(None if (why := JARS.fetch()) is None else f"no S3A: {why}")
