"""The way in: all verbs, and what happens when something goes wrong.

An error is one sentence on standard error and exit code 1; a command line that cannot be understood is code 2. Ctrl-C
and a reader that went away end quietly.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, NoReturn, ParamSpec

import typer

from holdfast import __version__
from holdfast.cli import (
    archive,
    check,
    console,
    contracts,
    create,
    delete,
    demo,
    down,
    drain,
    explain,
    fail,
    heal,
    host,
    load,
    mend_boundary,
    move,
    plan,
    plan_contracts,
    repair,
    replay,
    restore,
    retain,
    send,
    sink,
    status,
    streams,
    tail,
    try_,
    up,
    upgrade,
    verify,
)
from holdfast.cli.session import Root
from holdfast.model.errors import HoldfastError

_HELP = """Durable streams: make them, feed them, watch them, mend them.

\b
  holdfast create monitor1 --schema "source string, bytes bigint" --bucket 1s
  echo '{"source": "10.0.0.1", "bytes": 512}' | holdfast send monitor1
  holdfast tail monitor1
  holdfast streams

And applications over several hosts: start them, watch them, break them, stop them.

\b
  holdfast demo
  holdfast explain netmon.yaml
  holdfast up netmon.yaml
  holdfast status netmon.yaml --watch

And load shared with other owners: who carries what, at which price.

\b
  holdfast load netmon.yaml
  holdfast move netmon.yaml counts ben

Streams live below a folder: --root, or the environment variable HOLDFAST_ROOT, or ./streams. Every verb takes --json
and then prints one JSON object per line.
"""

P = ParamSpec("P")

app = typer.Typer(
    name="holdfast", help=_HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def _plainly(command: Callable[P, None]) -> Callable[P, None]:
    """The verb, with its errors told as a sentence instead of a traceback."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            # Everything was let go of on the way here. What else Python would do at its end may have been interrupted
            # half-way, a lock of the log for instance, and would complain.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(130)
        except BrokenPipeError:
            # Python would complain once more when it closes the pipe at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except HoldfastError as error:
            print(f"holdfast: {error}", file=sys.stderr)
            sys.exit(1)
        except OSError as error:
            plain = error.filename is not None and error.strerror
            said = f"{error.filename}: {error.strerror}; check the path and your rights there" if plain else error
            print(f"holdfast: {said}", file=sys.stderr)
            sys.exit(1)

    return told


for _verb in (streams, create, send, tail, sink, replay, verify, repair, mend_boundary, retain, archive, restore,
              delete, up, status, console, fail, heal, drain, down, host, check, explain, plan, upgrade, try_, load,
              contracts, move, plan_contracts, demo):  # fmt: skip
    app.command(_verb.__name__.rpartition(".")[2].rstrip("_").replace("_", "-"))(_plainly(_verb.command))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    root: Root = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    if root is not None:
        os.environ["HOLDFAST_ROOT"] = str(root)  # Where every verb looks if it was not told otherwise.


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM lets go of streams as Ctrl-C does."""
    raise KeyboardInterrupt


def run() -> None:
    """The entry point of the command `holdfast`."""
    signal.signal(signal.SIGTERM, _ended)
    try:
        app()
    finally:
        # All is done: a signal that comes while Python puts itself away would only make it complain.
        for late in (signal.SIGTERM, signal.SIGINT):
            signal.signal(late, signal.SIG_IGN)


if __name__ == "__main__":
    run()
