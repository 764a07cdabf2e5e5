"""Spark's listener events as they are cheapest to have: one string each, its JSON.

PySpark's own listeners ask the JVM for every field of an event on its own. Measured with batches of 43 ms that did
nothing: 6 to 9 ms of Python's and 25 to 40 ms of the JVM's processor time a batch, and it fell behind; as JSON 0.4 and
2 ms. Asking for `recentProgress` every second cost the same, and misses what comes between more than 100 batches.

Spark delivers the events of all queries of a session on a thread of its own, so no batch waits for them; a listener
must not either, and one that fails is said in the log and called again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class QueryEvents:
    """Override what you want to hear of."""

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A batch is done: `lastProgress` as Spark writes it, offsets as objects."""

    def idle(self, query_id: str) -> None:
        """A query has found nothing to do for a while."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """A run is over; nothing is told of it any more."""

    def add_to(self, session: SparkSession) -> None:
        """Hear the queries of that session from now on."""
        context = session.sparkContext
        ensure_callback_server_started(context._gateway)  # type: ignore[attr-defined]
        assert context._jvm is not None
        wrapper = context._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        session.streams._jsqm.addListener(wrapper(self))

    # What the JVM calls.

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        _told(event, lambda said: self.progressed(said["progress"]))

    def onQueryIdle(self, event: Any) -> None:
        _told(event, lambda said: self.idle(said["id"]))

    def onQueryTerminated(self, event: Any) -> None:
        _told(event, lambda said: self.terminated(said["id"], said["runId"]))

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _told(event: Any, tell: Callable[[Mapping[str, Any]], None]) -> None:
    try:
        tell(json.loads(event.json()))
    except Exception as error:
        log.warning("an event of Spark's was not heard: %s", error)
