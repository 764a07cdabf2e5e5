"""Runs a program to see what it defines, without letting it do anything.

Rules:
1. It sees arguments of its own (none), and is not `__main__`.
2. Where it would start an application, or a process, or change a file, or talk to the network, it ends: what it has
   defined up to there counts. Python itself tells of each such step before it is done (audit events).
3. It has so much time. A program that only waits would never come to its end.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from types import FrameType, TracebackType
from typing import Any

from holdfast.app import App
from holdfast.model.errors import UsageError

#: Importing pyspark, pandas and polars takes a busy machine some seconds.
_SECONDS = 60
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Steps that change something, by the name of Python's event: what a person would call them.
_STEPS = {
    **dict.fromkeys(("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty", "os.system"),
                    "start a process"),
    **dict.fromkeys(("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate",
                     "shutil.rmtree"), "change a file or folder"),
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto"), "talk to the network"),
    "sqlite3.connect": "open a database",
}  # fmt: skip
_looking: Looking | None = None
_hooked = threading.Lock()
_hook_added = False


class _Ended(BaseException):
    """The program would do something. Not an `Exception`: it must not take it for a failure and try otherwise."""


class Looking:
    """`with Looking("program.py") as looking: …`; afterwards `ended` says what the program would have done."""

    def __init__(self, program: str) -> None:
        self._program = program
        self.ended: str | None = None

    def __enter__(self) -> Looking:
        global _looking, _hook_added
        with _hooked:
            if not _hook_added:  # It cannot be taken out again.
                sys.addaudithook(_heard)
                _hook_added = True
        tempfile.gettempdir()  # Whoever asks first tries by writing a file; packages do when they are imported.
        self._kept = (sys.argv, sys.dont_write_bytecode, App.start, App.run)
        sys.argv, sys.dont_write_bytecode = [self._program], True
        App.start = App.run = _started  # type: ignore[method-assign,assignment]
        self._alarm = threading.current_thread() is threading.main_thread()
        if self._alarm:
            self._before = signal.signal(signal.SIGALRM, self._late)
            signal.alarm(_SECONDS)
        _looking = self
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        global _looking
        _looking = None
        if self._alarm:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, self._before)
        sys.argv, sys.dont_write_bytecode, App.start, App.run = self._kept  # type: ignore[method-assign]
        if isinstance(error, SystemExit):
            self.ended = self.ended or "end"
        return isinstance(error, _Ended | SystemExit)

    def _late(self, number: int, frame: FrameType | None) -> None:
        line = f", line {frame.f_lineno} of {os.path.basename(frame.f_code.co_filename)}" if frame is not None else ""
        raise UsageError(
            f"{self._program} must come to its end to be explained; it did not within {_SECONDS} s{line}; put what "
            f'waits behind `if __name__ == "__main__":`'
        )

    def stop(self, what: str) -> None:
        self.ended = self.ended or what
        raise _Ended(what)


def _started(app: App, *_: Any, **__: Any) -> None:
    assert _looking is not None
    _looking.stop(f"start the application {app.name}")


def _heard(event: str, given: tuple[Any, ...]) -> None:
    """Rule 2."""
    if _looking is None:
        return
    if event == "open":
        path, _, flags = given
        if isinstance(flags, int) and flags & _WRITING and path != os.devnull:
            _looking.stop(f"write {path}")
    elif event in _STEPS:
        _looking.stop(_STEPS[event])
