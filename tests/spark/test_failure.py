"""Whether a query that stopped is worth another start, and the one sentence of why it stopped."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from holdfast.model.errors import LateTuple, PeerError, Removed, SchemaError, StorageError, UnknownStream, UsageError
from holdfast.spark.failure import is_permanent, sentence

TRACE = """[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: Job aborted: Task 0
Traceback (most recent call last):
  File "worker.py", line 1
holdfast.model.errors.{kind}: {text}
 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: counts"""


@pytest.mark.parametrize("kind", ["UsageError", "SchemaError", "LateTuple"])
def test_an_error_of_the_users_is_permanent_wherever_it_was_raised(kind: str) -> None:
    error = StreamingQueryException(TRACE.format(kind=kind, text="stream s must have an stime"))
    assert is_permanent(error)
    assert sentence(error) == "stream s must have an stime"
    assert is_permanent({"UsageError": UsageError, "SchemaError": SchemaError, "LateTuple": LateTuple}[kind]("no"))


@pytest.mark.parametrize("kind", ["PeerError", "StorageError", "Removed", "UnknownStream", "StateLost"])
def test_what_may_pass_is_not(kind: str) -> None:
    assert not is_permanent(StreamingQueryException(TRACE.format(kind=kind, text="away")))
    for error in (
        PeerError("away"),
        StorageError("full"),
        Removed("gone"),
        UnknownStream("not yet"),
        OSError("broken"),
    ):
        assert not is_permanent(error)
    assert not is_permanent(None)


def test_a_query_that_spark_refuses_is_permanent_and_told_without_its_plan() -> None:
    text = "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `ky` cannot be resolved. Did you mean `k`? SQLSTATE: 42703;"
    error = AnalysisException(f"{text}\n'Project ['ky]\n+- Filter NOT (x = 3)\n   +- StreamingRelationV2")
    assert is_permanent(error)
    assert sentence(error) == text.removesuffix(" SQLSTATE: 42703;")
    stopped = (
        "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: [UNSUPPORTED_FEATURE.X] no SQLSTATE: 1"
    )
    assert is_permanent(StreamingQueryException(stopped))
    assert sentence(StreamingQueryException(stopped)) == "[UNSUPPORTED_FEATURE.X] no"
    assert not is_permanent(StreamingQueryException("[STREAM_FAILED] Query [id = a] terminated with exception: OOM"))
