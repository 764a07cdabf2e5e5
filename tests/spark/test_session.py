"""Whether a session can still be used, seen in a process of its own: its JVM is killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.processes import REPOSITORY, environment

ENDS = """
from pyspark import SparkContext
from holdfast.spark.session import has_ended, session

spark = session(master="local[1]", spark_sql_shuffle_partitions="8")
assert not has_ended(spark)
assert session().conf.get("spark.sql.shuffle.partitions") == "8", "queries that run rely on it"
java = SparkContext._gateway.proc
spark._jsparkSession.sparkContext().stop()
assert java.poll() is None and has_ended(spark)
java.kill()
java.wait()
assert has_ended(spark)
print("seen")
"""


@pytest.mark.slow
def test_a_session_whose_context_was_stopped_or_whose_jvm_was_killed_has_ended() -> None:
    command = [sys.executable, "-c", ENDS]
    ran = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.stdout.strip().endswith("seen"), ran.stderr[-2000:]
