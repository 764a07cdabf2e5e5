"""Queries over streams that have ended end as well: `query.awaitTermination()` returns.

Spark's streaming queries never end by themselves. When all streams that a query reads are closed, and it has computed
and written everything that follows from them, nothing can come any more, and it is stopped.

Rules:
1. It is over when the offset of every source is the end of time, and Spark has found nothing left to do: for a query
   without state right after that batch, for others once it is idle, since windows come out in the batches behind it.
2. Queries of nodes have somebody who looks after them (`lasts`): they stay, so that their readers are served.
3. A query is stopped in a thread of its own. Spark delivers the events of all queries in one.
4. A query whose checkpoint is written by a file manager that does not fit its filesystem is told to the log.
5. One that is started again behind its last batch runs none, so Spark says nothing of its offsets: its checkpoint does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from holdfast.spark.checkpoint_figures import Warnings, recovery_of
from holdfast.spark.fork import last_commit
from holdfast.spark.hadoop_path import CheckpointFolder, checkpoint_folder, unfit_manager
from holdfast.spark.leaked_references import let_go
from holdfast.spark.query_events import QueryEvents
from holdfast.spark.wal import read_wal
from holdfast.stream.merge import FOREVER_US

log = logging.getLogger(__name__)

_lasting: set[str] = set()
_attended: WeakSet[SparkSession] = WeakSet()


def lasts(name: str) -> None:
    """A query of that name is not stopped here (rule 2)."""
    _lasting.add(name)


def attend(spark: SparkSession) -> SparkSession:
    """Look after the queries of a session, from now on."""
    if spark not in _attended:
        _Endings(spark).add_to(spark)
        _attended.add(spark)
    return spark


class _Endings(QueryEvents):
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._over: set[str] = set()
        self._known: set[str] = set()
        self._warnings = Warnings()

    def progressed(self, progress: Mapping[str, Any]) -> None:
        query, name = str(progress["id"]), progress.get("name")
        if query not in self._known:
            self._known.add(query)
            threading.Thread(target=self._check, args=(query,), name=f"check-{query}", daemon=True).start()
        self._warnings.look(query, f"query {name or query}", recovery_of(progress.get("observedMetrics")))
        if name in _lasting or not progress["sources"]:
            return
        if all(_at_the_end(source.get("endOffset")) for source in progress["sources"]):
            self._over.add(query)
            if not progress["stateOperators"]:
                self._end(query)

    def idle(self, query_id: str) -> None:
        if query_id in self._over:
            self._end(query_id)
        elif query_id not in self._known:
            self._known.add(query_id)
            threading.Thread(target=self._look, args=(query_id,), name=f"end-{query_id}", daemon=True).start()

    def terminated(self, query_id: str, run_id: str) -> None:
        self._over.discard(query_id)
        self._known.discard(query_id)
        self._warnings.forget(query_id)

    def _check(self, query: str) -> None:
        """Rule 4."""
        with contextlib.suppress(Exception):  # As below.
            found = self._spark.streams.get(query)
            if found is None:
                return
            name = found.name or query
            if (unfit := unfit_manager(self._spark, _checkpoint_of(found))) is not None:
                log.warning("query %s: %s", name, unfit)

    def _look(self, query: str) -> None:
        """Rule 5."""
        with contextlib.suppress(
            Exception
        ):  # It has ended meanwhile, its checkpoint lies elsewhere, or Spark has ended.
            found = self._spark.streams.get(query)
            if found is None or found.name in _lasting:
                return
            folder = _checkpoint_of(found)
            watermark_ms, ends = read_wal(folder, last_commit(folder))
            released = watermark_ms * 1000 >= FOREVER_US or not (folder / "state").exists()
            if ends is not None and min(ends) >= FOREVER_US and released:
                self._stop(query)

    def _end(self, query: str) -> None:
        """Rule 3."""
        threading.Thread(target=self._stop, args=(query,), name=f"end-{query}", daemon=True).start()

    def _stop(self, query: str) -> None:
        with contextlib.suppress(Exception):  # It has ended meanwhile, or Spark has.
            found = self._spark.streams.get(query)
            if found is not None:
                log.info("query %s has come to the end of its inputs", found.name or query)
                found.stop()


def _checkpoint_of(query: StreamingQuery) -> CheckpointFolder:
    """Which is the last that is asked of it: Python holds it no longer than that."""
    execution = query._jsq.streamingQuery()
    try:
        return checkpoint_folder(str(execution.resolvedCheckpointRoot()))
    finally:
        let_go(execution, query._jsq)


def _at_the_end(offset: Any) -> bool:
    """Whether it is one of ours, behind which nothing follows."""
    try:
        given = json.loads(offset) if isinstance(offset, str) else offset
        return int(given["until_us"]) >= FOREVER_US
    except (TypeError, ValueError, KeyError):
        return False
