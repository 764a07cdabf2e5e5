"""Healthy runs print no traces; others still do."""

from __future__ import annotations

import socketserver
import subprocess
import sys

import pytest
from pyspark.logger import PySparkLogger

from holdfast.spark.noise import quiet_accumulators, quiet_refusals

#: What a program begins with that is to run Spark's daemon.
QUIET = "import pyspark.daemon as d; from holdfast.spark.noise import quiet_daemon; quiet_daemon(d)"


class Server(socketserver.BaseServer):
    def __init__(self) -> None:
        super().__init__(("", 0), socketserver.BaseRequestHandler)

    def meet(self, error: Exception) -> None:
        try:
            raise error
        except Exception:
            self.handle_error(None, "jvm")  # type: ignore[arg-type]


def test_a_jvm_that_has_ended_is_no_trace_and_another_error_is(capfd: pytest.CaptureFixture[str]) -> None:
    server = Server()
    quiet_accumulators(server)
    server.meet(EOFError())
    server.meet(ConnectionResetError())
    assert capfd.readouterr().err == ""
    server.meet(ValueError("a token that is not ours"))
    assert "a token that is not ours" in capfd.readouterr().err


def test_what_spark_refuses_is_raised_and_not_printed_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    quiet_refusals()
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).exception("a column that is not there", errorClass="UNRESOLVED_COLUMN")
    assert capfd.readouterr().err == ""


def test_a_daemon_says_everything_but_that_a_stopped_query_does_not_read() -> None:
    said = 'print("PySpark daemon failed to flush the output"); print("something else")'
    program = f"{QUIET}\nexec({said!r}, vars(d))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "something else\n"


@pytest.mark.parametrize(("error", "told"), [("BrokenPipeError()", False), ("ValueError('of the user')", True)])
def test_a_worker_whose_query_is_stopped_leaves_no_trace_and_another_does(error: str, told: bool) -> None:
    fails = f"try:\n    raise {error}\nexcept Exception:\n    traceback.print_exc()"
    program = f"{QUIET}\nexec({fails!r}, vars(d))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("Traceback" in done.stderr) is told


@pytest.mark.parametrize(("error", "told"), [("BrokenPipeError()", False), ("ValueError('of the user')", True)])
def test_a_reader_whose_query_is_stopped_leaves_no_trace_and_another_does(error: str, told: bool) -> None:
    program = f"""
from holdfast.spark.reader_server import _end_as
def work():
    try:
        raise EOFError
    except EOFError:
        raise {error}
_end_as(work)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) is told
