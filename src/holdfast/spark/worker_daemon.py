"""Spark's daemon for Python workers, with what they need imported before it forks them.

    python -m holdfast.spark.worker_daemon pyspark.worker

Spark lets every worker import for itself, because numpy and pyarrow start threads when they are imported, and a process
with threads must not fork. That costs each worker half a second, in which a fork of a node is not yet running, and
memory that it could share.

1. The two can be told to start none (`NO_THREADS`, before the first import). Then all comes before the fork.
2. Should there be a thread nevertheless, Spark's own daemon takes this process's place.
3. What is there before the fork is there for good: a worker collects garbage after every task and need not look at it.
4. Random numbers of numpy are begun anew in every worker; those of Python are by themselves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

from holdfast.spark.noise import quiet_daemon

#: Settings of OpenBLAS, which numpy brings, and of Arrow's jemalloc.
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
#: What the workers of nodes import, as seen in them; not polars, which cannot be told.
OURS = ("pyarrow.compute", "holdfast.spark.sink", "holdfast.spark.source")
#: And those that run functions of users, too. The others plan, write or commit, each kind with a daemon of its own.
OF_FUNCTIONS = (
    "pandas", "pyspark.sql.conversion", "pyspark.sql.pandas.serializers", "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source", "pyspark.sql.streaming.stateful_processor_api_client",
)  # fmt: skip


def import_ahead(worker: str) -> None:
    """Rules 1 and 4. What this version of Spark does not have, or this machine lacks, its workers do without, too; one
    that needs what cannot be imported says so itself."""
    for module in (worker, *OURS, *(OF_FUNCTIONS if worker == "pyspark.worker" else ())):
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    if (random := sys.modules.get("numpy.random")) is not None:
        os.register_at_fork(after_in_child=random.seed)


def threads() -> int:
    """How many run in this process, whoever started them; 0 where the system does not say."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 0


def main() -> None:
    import_ahead(sys.argv[1] if sys.argv[1:] else "pyspark.worker")
    if threads() != 1:
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    import pyspark.daemon

    quiet_daemon(pyspark.daemon)
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
