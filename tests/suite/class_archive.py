"""An archive of the classes that Spark loads, which all JVMs of a run share (Java's class data sharing).

A JVM that maps them instead of loading and verifying them starts with half of the work, and the tests start dozens. The
archive is made once for an environment, from what a few queries of every kind load, and lies in it, since that is what
workers of clusters see, too. A JVM that finds it not to fit (another Java, other jars) goes without it.

    python -m tests.suite.class_archive FOLDER STAGED ARCHIVE       what is run to know the classes
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

_HOME = Path(__file__).parents[2]
#: One compiler and no threads for a collector: for JVMs that live for a minute.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Where drivers, and where masters and workers of clusters look for options.
JVM_OPTIONS = ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")
#: Making it takes a minute of a core.
_MADE_S_MAX = 300.0
#: It does not say what it could not archive or use.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"


class SharedClasses:
    """The archive of this environment. If it is missing it is made beside the first tests, and until it is there JVMs
    go without it.
    """

    def __init__(self) -> None:
        self._archive = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
        self._making: subprocess.Popen[bytes] | None = None
        if any(variable in os.environ for variable in JVM_OPTIONS):
            return  # Chosen by somebody else.
        if not self._archive.exists():
            self._make()
        for variable in JVM_OPTIONS:
            os.environ[variable] = f"{SHORT_LIVED} -XX:SharedArchiveFile={self._archive} {_SILENT}"

    def _make(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-classes-")
        self._staged = self._archive.with_suffix(f".{os.getpid()}")
        options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={self._staged} {_SILENT}"
        with open(self._log, "wb") as log:
            self._making = subprocess.Popen(
                [sys.executable, "-m", "tests.suite.class_archive", self._folder.name, self._staged, self._archive],
                cwd=_HOME, stdout=log, stderr=log,
                env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYTHONPATH": str(_HOME)},
            )  # fmt: skip

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "log"

    def close(self) -> None:
        """Say so if it could not be made, and leave nothing behind."""
        if self._making is None:
            return
        try:
            self._making.wait(_MADE_S_MAX)
        except subprocess.TimeoutExpired:
            self._making.kill()
            self._making.wait()
        if not self._archive.exists():
            print(f"no archive of Spark's classes; JVMs started without:\n{self._log.read_text()[-1000:]}", flush=True)
            self._staged.unlink(missing_ok=True)
        self._folder.cleanup()
        self._making = None


def _train(folder: Path) -> None:
    """Queries that load what most tests need."""
    from pyspark import SparkContext

    import holdfast
    from holdfast.spark import read_stream, session
    from tests.spark import island_job, test_fork
    from tests.spark.conftest import fill

    spark = session("holdfast-classes", master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    store = holdfast.open(folder / "streams")
    for stream in ("a", "b"):
        fill(store, stream, test_fork.FIRST)
    sparks_own = {test_fork.HDFS: ["windows"], test_fork.ROCKSDB: ["joined", "counted_in_python", "transformed"]}
    for ours in (island_job.direct, island_job.plain):
        ours(spark, str(store.root), {"checkpoint_location": str(folder / ours.__name__)}, ours.__name__)
    for provider, names in sparks_own.items():
        spark.conf.set(test_fork.PROVIDER, provider)
        for name in names:
            rows = read_stream(spark, "a", root=store.root)
            test_fork.run(test_fork.QUERIES[name](rows), folder / f"{name}-{provider}")
    spark.stop()
    # The JVM ends when nobody is left to talk to it; the archive is written by then.
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_MADE_S_MAX)


if __name__ == "__main__":
    scratch, staged, archive = map(Path, sys.argv[1:])
    _train(scratch)
    staged.rename(archive)  # Whole, or not there: JVMs are started meanwhile.
