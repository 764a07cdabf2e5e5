"""Traces that Spark's Python parts print in healthy runs, or beside the error that they raise, kept away from the user.

1. A worker whose query is stopped cannot flush its last results, since nobody reads them any more: a BrokenPipeError of
   the daemon that it was forked from, which prints it in one of two ways, as Spark is set up.
2. The server that counts accumulators reads from a JVM that has ended: an EOFError at the end of every program.
3. A query that Spark refuses raises its sentence, and is told to a logger as well, with its plan and a trace of the
   JVM: eight thousand characters of JSON in front of what a user wants to read.

What else they have to say is printed as before.
"""

from __future__ import annotations

import builtins
import logging
import socketserver
import sys
import traceback
import types
from typing import Any

from pyspark.logger import PySparkLogger


def quiet_daemon(daemon: Any) -> None:
    """Rule 1, for the module `pyspark.daemon` of a process that is to run it."""

    def tell(*words: Any, **options: Any) -> None:
        if "failed to flush" not in str(words[:1]):
            builtins.print(*words, **options)

    def trace() -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()

    daemon.print = tell
    daemon.traceback = types.SimpleNamespace(format_exc=traceback.format_exc, print_exc=trace)


def quiet_refusals() -> None:
    """Rule 3, for this process."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def quiet_accumulators(server: Any) -> None:
    """Rule 2, for the accumulators' server of a context; None: it has none."""
    if not isinstance(server, socketserver.BaseServer):
        return
    tell = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            tell(request, address)

    server.handle_error = handle_error  # type: ignore[method-assign,assignment]
