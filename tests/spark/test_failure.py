"""Whether a query that stopped is worth another start, and the one sentence of why it stopped."""

from __future__ import annotations

import json

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkTypeError, StreamingQueryException, UnknownException

from holdfast.model.errors import LateTuple, PeerError, Removed, SchemaError, StorageError, UnknownStream, UsageError
from holdfast.spark.failure import cause, is_permanent, sentence
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


def stopped(inner: str) -> StreamingQueryException:
    """As Spark tells it, with what follows."""
    return StreamingQueryException(f"{inner}\n=== Streaming Query ===\nIdentifier: n [id = 1, runId = 2]")


def in_worker(file: str, raised: str) -> StreamingQueryException:
    return stopped(
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
        f'  File "{file}", line 17, in inverse\n    return 1 // n\n           ~~^~~\n{raised}\n SQLSTATE: 38000'
    )


def test_what_a_batch_dies_of_again_is_told_by_its_place_and_without_values() -> None:
    for value in ("1", "2"):
        error = in_worker("/home/u/app.py", f"ValueError: {value} is no price")
        assert (cause(error), is_permanent(error)) == ("ValueError (app.py line 17)", False)
        assert sentence(error) == f"ValueError: {value} is no price (app.py line 17)"
    divided = stopped(
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n== DataFrame ==\n"
        '"divide" was called from\n/home/u/app.py:9\n'
    )
    assert (cause(divided), sentence(divided)) == (
        "DIVIDE_BY_ZERO",
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. (app.py line 9)",
    )
    # Where Spark names the class of Java's first, in a task of a cluster.
    aborted = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times: org.apache.spark.SparkArithmetic"
    assert cause(stopped(f"{aborted}Exception: [ARITHMETIC_OVERFLOW] too long. SQLSTATE: 22003")) == (
        "ARITHMETIC_OVERFLOW"
    )
    assert cause(stopped("[USER_RAISED_EXCEPTION] no SQLSTATE: P0001")) == "USER_RAISED_EXCEPTION"


@pytest.mark.parametrize(
    "error",
    [
        in_worker("/home/u/app.py", "ConnectionRefusedError: [Errno 111] nobody listens"),
        in_worker("/home/u/app.py", "requests.exceptions.ReadTimeout: too slow"),
        in_worker("/home/u/app.py", "psycopg.OperationalError: the server is away"),
        in_worker("/home/u/app.py", "MemoryError"),
        in_worker("/usr/lib/python3/site-packages/pyspark/worker.py", "RuntimeError: can't start new thread"),
        stopped("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)"),
        stopped("Job aborted: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        stopped("java.lang.OutOfMemoryError: Java heap space"),
        stopped("[TASK_WRITE_FAILED] Task failed while writing rows to /x. SQLSTATE: 58030"),
        StreamingQueryException(TRACE.format(kind="StorageError", text="full")),
        None,
    ],
)
def test_what_another_start_may_mend_has_no_cause_in_the_batch(error: Exception | None) -> None:
    assert cause(error) is None
    assert not is_permanent(error)
