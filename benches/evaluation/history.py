"""The history behind published results: whether the commit that one names is there, and whether its code is newer.

A copy without a history (an archive, a shallow clone) can say neither.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

HOME = Path(__file__).parents[2]


def _git(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *command], cwd=HOME, capture_output=True, text=True, check=False)


@cache
def is_known() -> bool:
    """Whether this copy has its history."""
    return _git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


def has(commit: str) -> bool:
    """Whether whoever clones this gets the commit; a plus behind it says that files were changed since."""
    return _git("merge-base", "--is-ancestor", commit.rstrip("+"), "HEAD").returncode == 0


def is_newer(commit: str, code: Sequence[str]) -> bool:
    """Whether these files or folders, as they are here, are not those of the commit."""
    return _git("diff", "--quiet", commit.rstrip("+"), "--", *code).returncode == 1
