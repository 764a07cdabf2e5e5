"""Takes from Spark's listener bus the listener that every query over state leaves there.

A query runs in a session of its own. The first of its batches that looks for a state store asks that session for its
`StreamingQueryManager`, which adds a listener to the bus that all sessions share, and nothing ever removes it. No query
is started in that session, so there is nothing that it could tell anybody; but each event of each batch of every query
is handed to all of them, one after the other.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.spark.leaked_references import let_go


def remove_listener(spark: SparkSession, query: StreamingQuery) -> None:
    """That of a query which has stopped."""
    execution = query._jsq.streamingQuery()
    session = execution.sparkSessionForStream()
    manager = session.streams()
    field = manager.getClass().getDeclaredField("listenerBus")
    field.setAccessible(True)
    context = spark.sparkContext._jsc
    assert context is not None
    context.sc().listenerBus().removeListener(field.get(manager))
    let_go(execution, session, manager)
