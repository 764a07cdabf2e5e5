"""Whether a query that stopped is worth another start, and the one sentence of why it stopped."""

from __future__ import annotations

import json

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkTypeError, StreamingQueryException, UnknownException

from holdfast.model.errors import LateTuple, PeerError, Removed, SchemaError, StorageError, UnknownStream, UsageError
from holdfast.spark.failure import is_permanent, sentence
from holdfast.spark.given_frames import call_alone

TRACE = """[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: Job aborted: Task 0
Traceback (most recent call last):
  File "worker.py", line 1
holdfast.model.errors.{kind}: {text}
 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: counts"""

CALLS_A_LIBRARY = lambda: json.loads("no json")  # noqa: E731 - one line


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


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("k"), UsageError),
        (SystemExit(3), UsageError),
        (PySparkTypeError("NOT_COLUMN: got an int"), UsageError),
        (UsageError("said already"), UsageError),
        (FileNotFoundError(2, "No such file", "rules.json"), PeerError),
        (type("OperationalError", (Exception,), {})("the database is away"), PeerError),
        (Py4JNetworkError("the JVM is away"), PeerError),
        (UnknownException("java.net.ConnectException: Connection refused"), PeerError),
        (AnalysisException("[UNRESOLVED_COLUMN] Spark says it"), AnalysisException),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_what_a_function_raises_is_one_sentence_of_its_node_and_says_whether_it_may_pass(
    error: Exception, kind: type[Exception]
) -> None:
    def function() -> None:
        raise error

    with pytest.raises(kind) as told:
        call_alone(function, [], "node n")
    if told.value is not error:
        assert str(told.value).startswith(
            f"node n must be given its query by its function; it raised {type(error).__name__}"
        )
        assert f"(test_failure.py line {function.__code__.co_firstlineno + 1})" in str(told.value)
        assert "\n" not in str(told.value)
    assert is_permanent(told.value) == (kind is not PeerError)


def test_the_line_that_is_named_is_the_users_also_where_a_library_raised() -> None:
    with pytest.raises(
        UsageError, match=rf"Expecting value.* \(test_failure\.py line {CALLS_A_LIBRARY.__code__.co_firstlineno}\)"
    ):
        call_alone(CALLS_A_LIBRARY, [], "node n")


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
