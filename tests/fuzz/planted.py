"""Targets that fail on purpose, so that it is known that failures are found."""

from __future__ import annotations

import os
import random
import signal
import time

from tests.fuzz.target import Target, Wrong


class Crash(Target):
    def round(self, chance: random.Random) -> None:
        self.tried["planted"] += 1
        if chance.random() < 0.5:
            os.kill(os.getpid(), signal.SIGSEGV)


class Hang(Target):
    def round(self, chance: random.Random) -> None:
        time.sleep(3600)


class Differs(Target):
    def round(self, chance: random.Random) -> None:
        raise Wrong("planted: it differs")


class Stranger(Target):
    def round(self, chance: random.Random) -> None:
        self.refused_or("planted", lambda: [][1], "an empty list")
