"""Healthy runs print no traces; others still do."""

from __future__ import annotations

import os
import socketserver
import struct
import subprocess
import sys

import pytest

from holdfast.spark.noise import DAEMON, keep_quiet
from holdfast.spark.session import quick_python


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
    keep_quiet(server)
    server.meet(EOFError())
    server.meet(ConnectionResetError())
    assert capfd.readouterr().err == ""
    server.meet(ValueError("a token that is not ours"))
    assert "a token that is not ours" in capfd.readouterr().err


def test_a_daemon_says_everything_but_that_a_stopped_query_does_not_read() -> None:
    said = 'print("PySpark daemon failed to flush the output"); print("something else")'
    program = f"import pyspark.daemon as d\nd.manager = lambda: exec({said!r}, vars(d))\n{DAEMON}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "something else\n"


@pytest.mark.parametrize(("error", "told"), [("BrokenPipeError()", False), ("ValueError('of the user')", True)])
def test_a_worker_whose_query_is_stopped_leaves_no_trace_and_another_does(error: str, told: bool) -> None:
    fails = f"try:\n    raise {error}\nexcept Exception:\n    traceback.print_exc()"
    program = f"import pyspark.daemon as d\nd.manager = lambda: exec({fails!r}, vars(d))\n{DAEMON}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("Traceback" in done.stderr) is told


def test_the_interpreter_for_workers_runs_sparks_daemon() -> None:
    """It says where it listens, and ends with its input."""
    process = subprocess.Popen(
        [quick_python(), "-m", "pyspark.daemon", "pyspark.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "SPARK_REUSE_WORKER": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    (port,) = struct.unpack("!i", process.stdout.read(4))
    assert 0 < port < 65536
    process.stdin.close()
    process.wait(60)
