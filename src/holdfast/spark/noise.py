"""Traces that Spark's Python parts print in healthy runs, kept away from the user.

1. A worker whose query is stopped cannot flush its last results, since nobody reads them any more: a BrokenPipeError of
   the daemon that it was forked from, which prints it in one of two ways, as Spark is set up.
2. The server that counts accumulators reads from a JVM that has ended: an EOFError at the end of every program.

What else they have to say is printed as before.
"""

from __future__ import annotations

import socketserver
import sys
from typing import Any

#: Runs `pyspark.daemon` with rule 1. Text, and not a module of ours: before it forks, a daemon must not import anything
#: that starts threads, as pyarrow does.
DAEMON = (
    "import builtins, sys, traceback, types, pyspark.daemon as d; "
    'd.print = lambda *a, **k: "failed to flush" in str(a[:1]) or builtins.print(*a, **k); '
    "trace = lambda: isinstance(sys.exc_info()[1], BrokenPipeError) or traceback.print_exc(); "
    "d.traceback = types.SimpleNamespace(format_exc=traceback.format_exc, print_exc=trace); "
    "d.manager()"
)


def keep_quiet(server: Any) -> None:
    """Rule 2, for the accumulators' server of a context; None: it has none."""
    if not isinstance(server, socketserver.BaseServer):
        return
    tell = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            tell(request, address)

    server.handle_error = handle_error  # type: ignore[method-assign,assignment]
