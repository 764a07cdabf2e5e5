"""Targets in child processes: whatever a round does, its seed is known.

Rules:
1. A child writes the seed of a round before it begins it and what was tried after it. A child that dies has crashed in
   the round that it began last; one that is silent for `HANG_S` hangs in it and is killed. Another goes on behind it.
2. Seeds of a target begin where the caller says and go up by one, so that a run can be repeated.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.target import Target, Wrong

#: A round takes some hundredths of a second; this long only a machine that is starved, or a round that does not end.
HANG_S = 60.0
#: Failures of one target that are told; the rest would say the same.
_TOLD_MAX = 20


#: Module and class of each target: a child imports no more than it needs.
TARGETS = {
    "inputs": "inputs:Inputs", "wire": "wire:Wire", "parcels": "parcels:Parcels", "logs": "logs:Logs",
    "schema": "texts:Schemas", "yaml": "texts:Yaml", "avro": "kafka:Avro", "protobuf": "kafka:Protobuf",
    "postgres": "postgres:Postgres", "planted-crash": "planted:Crash", "planted-hang": "planted:Hang",
    "planted-wrong": "planted:Differs", "planted-stranger": "planted:Stranger",
}  # fmt: skip


def target_of(name: str) -> type[Target]:
    module, _, found = TARGETS[name].partition(":")
    kind: type[Target] = getattr(importlib.import_module(f"tests.fuzz.{module}"), found)
    return kind


def child(name: str, first: int, rounds: int | None) -> None:
    """Run rounds until the parent has had enough; one line of JSON before and after each."""
    with tempfile.TemporaryDirectory() as folder:
        target = target_of(name)(Path(folder))
        for seed in range(first, first + rounds if rounds is not None else sys.maxsize):
            _say(seed=seed)
            target.tried.clear()
            wrong = None
            try:
                target.round(random.Random(f"{name}/{seed}"))
            except Wrong as error:
                wrong = str(error)
            _say(tried=dict(target.tried), wrong=wrong)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Totals:
    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.rounds = 0
        self.failures: dict[str, list[str]] = {"crashes": [], "hangs": [], "wrong": []}

    def fail(self, kind: str, target: str, seed: int, what: str) -> None:
        self.failures[kind].append(f"{target} seed {seed}: {what}")
        if len(self.failures[kind]) <= _TOLD_MAX:
            print(f"{kind}: --target {target} --seed {seed}: {what}", flush=True)


class Children:
    """One target: its child of the moment, and what is known of it."""

    def __init__(self, name: str, first: int, totals: Totals, rounds: int | None, hang_s: float) -> None:
        self.name, self._next, self._totals, self._hang_s = name, first, totals, hang_s
        self._rounds = rounds
        self._child: subprocess.Popen[str] | None = None
        self._busy: int | None = None

    def run(self, seconds: float) -> None:
        """For so long from the first round on: what a child imports is not counted."""
        until: float | None = None
        while (until is None or time.monotonic() < until) and self._rounds != 0:
            until = self._one_child(seconds, until)

    def _one_child(self, seconds: float, until: float | None) -> float:
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.fuzz",
            "--child",
            self.name,
            "--seed",
            str(self._next),
        ]
        if self._rounds is not None:
            command += ["--rounds", str(self._rounds)]
        # A child that is killed leaves what it wrote; it writes where that is removed.
        with tempfile.TemporaryDirectory(prefix="holdfast-fuzz-") as folder, tempfile.TemporaryFile("w+") as errors:
            environment = {**_environment(), "TMPDIR": folder}
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
            try:
                ended, until = self._listen(child, seconds, until)
            finally:
                if child.poll() is None:
                    child.kill()
                child.wait()
                assert child.stdout is not None
                child.stdout.close()
            errors.seek(0)
            said = errors.read().strip().splitlines()
        if ended == "hang":
            self._totals.fail("hangs", self.name, self._seed(), f"no answer within {self._hang_s:.0f} s")
        elif ended == "end" and self._busy is None and child.returncode == 0:
            self._rounds = 0
            return until
        elif ended == "end":
            why = f"exit code {child.returncode}; {' | '.join(said[-4:])}"
            self._totals.fail("crashes", self.name, self._seed(), why)
        if ended != "time":
            self._pass_on()
        return until

    def _pass_on(self) -> None:
        self._rounds = None if self._rounds is None else self._rounds - 1
        self._next, self._busy = self._seed() + 1, None

    def _seed(self) -> int:
        return self._next if self._busy is None else self._busy

    def _listen(self, child: subprocess.Popen[str], seconds: float, until: float | None) -> tuple[str, float]:
        assert child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                if until is not None and time.monotonic() >= until and self._busy is None:
                    return "time", until
                # A round that has begun may take its time: whether it hangs is known only then. What a child
                # imports before its first round is no part of one.
                if not selector.select(self._hang_s if self._busy is not None else max(HANG_S, self._hang_s)):
                    return "hang", until or time.monotonic() + seconds
                line = child.stdout.readline()
                if not line:
                    return "end", until or time.monotonic() + seconds
                until = until or time.monotonic() + seconds
                self._hear(json.loads(line))

    def _hear(self, said: dict[str, Any]) -> None:
        if "seed" in said:
            self._busy = said["seed"]
            return
        self._totals.tried.update({f"{self.name}: {what}": n for what, n in said["tried"].items()})
        self._totals.rounds += 1
        if said["wrong"] is not None:
            self._totals.fail("wrong", self.name, self._seed(), said["wrong"])
        self._pass_on()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONHASHSEED": "0"}
