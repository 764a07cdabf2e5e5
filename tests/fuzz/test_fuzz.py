"""The fuzzer finds what is planted, and nothing in what is ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


def fuzz(*args: str) -> tuple[dict[str, Any], str]:
    """What the last line says, and everything that was printed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *args], capture_output=True, text=True, env=env, cwd=_ROOT, check=False
    )
    assert done.stdout, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == (1 if said["crashes"] + said["hangs"] + said["wrong"] else 0)
    return said, done.stdout


@pytest.mark.slow
def test_no_value_from_outside_crashes_hangs_or_comes_back_different() -> None:
    # From the same seed each time: what others find is for whoever looks (`python -m tests.fuzz`), not for who lands.
    said, text = fuzz("--seconds", "8", "--first", "1")
    assert (said["crashes"], said["hangs"], said["wrong"]) == (0, 0, 0), text
    assert said["tried"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kind", "rounds"),
    [
        ("planted-crash", "crashes", 4),
        ("planted-wrong", "wrong", 1),
        ("planted-stranger", "wrong", 1),
        ("planted-hang", "hangs", 1),
    ],
)
def test_a_planted_failure_is_counted_and_its_seed_is_printed(target: str, kind: str, rounds: int) -> None:
    said, text = fuzz("--target", target, "--rounds", str(rounds), "--first", "1", "--hang-seconds", "3")
    assert said[kind] >= 1, text
    assert sum(said[one] for one in ("crashes", "hangs", "wrong")) == said[kind]
    seed = text.split("--seed ")[1].split(":")[0]
    again, _ = fuzz("--target", target, "--seed", seed, "--hang-seconds", "3")
    assert again[kind] == 1
