"""The command as users run it: a process of its own.

It is forked from one that has imported the command already, since that takes longer than most verbs.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app, run

SCHEMA = "source string, bytes bigint"
_forking = multiprocessing.get_context("forkserver")
# And what the command imports later: typer for options, Arrow with its first array.
_forking.set_forkserver_preload(["holdfast.cli.main", "pydantic", "typer._adapters", "pandas"])


class Cli:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {**os.environ, "HOLDFAST_ROOT": str(root), "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(self, *args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        words = list(map(str, args))
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("in", "out", "err")]
            files[0].write_bytes(stdin)
            process = _forking.Process(target=_be_the_command, args=(words, self.env, os.getcwd(), files))
            process.start()
            process.join(60)
            if process.is_alive():
                process.kill()
                raise subprocess.TimeoutExpired(words, 60)
            assert process.exitcode is not None
            done = subprocess.CompletedProcess(words, process.exitcode, files[1].read_text(), files[2].read_text())
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def ok(self, *args: object, stdin: bytes = b"") -> str:
        done = self.run(*args, stdin=stdin)
        assert done.returncode == 0, done
        return done.stdout

    def objects(self, *args: object, stdin: bytes = b"") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ok(*args, "--json", stdin=stdin).splitlines()]

    def fails(self, *args: object, stdin: bytes = b"", code: int = 1) -> str:
        """The one sentence that a failure says."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode == code, done
        assert done.stderr.startswith("holdfast: ") or code == 2, done
        assert code == 2 or done.stderr.count("\n") == 1, done
        return done.stderr

    @contextlib.contextmanager
    def started(self, *args: object) -> Iterator[subprocess.Popen[str]]:
        child = subprocess.Popen(
            _command(args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.env, preexec_fn=_heed_ctrl_c,
        )  # fmt: skip
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            _, err = child.communicate(timeout=20)
            assert "Traceback" not in err, err


def _be_the_command(words: list[str], env: dict[str, str], folder: str, files: list[Path]) -> None:
    """In the forked process."""
    for fd, (file, mode) in enumerate(zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        os.dup2(os.open(file, mode | os.O_CREAT, 0o600), fd)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = ["holdfast", *words]
    run()


def _heed_ctrl_c() -> None:
    """A shell that starts the tests in the background makes everything below them deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class InsideCli(Cli):
    """The same without a process of its own, for the many small questions that need none."""

    def run(self, *args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        env = {"HOLDFAST_ROOT": str(self.root)}
        done = CliRunner().invoke(app, list(map(str, args)), input=stdin, env=env, prog_name="holdfast")
        assert done.exception is None or isinstance(done.exception, SystemExit), done
        return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)


def _command(args: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.main", *map(str, args)]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "streams")


@pytest.fixture
def inside(tmp_path: Path) -> InsideCli:
    return InsideCli(tmp_path / "streams")


@pytest.fixture
def filled(cli: Cli, inside: Cli) -> Cli:
    """With a stream `s` of ten tuples at the seconds 1 to 10, ended."""
    inside.ok("create", "s", "--schema", "source string, bytes bigint, at bigint", "--bucket", "1s")
    rows = b"".join(b'{"source": "h%d", "bytes": %d, "at": %d}\n' % (n % 3, n, n) for n in range(1, 11))
    inside.ok("send", "s", "--stime", "at", "--stime-unit", "s", "--end", stdin=rows)
    return cli
