"""Names of streams, and where they may lead.

A name becomes a folder below the data root, so the rule is strict and checked in one place (X2): lower-case letters,
digits, dots, dashes and underscores, first a letter or digit, never two dots in a row, at most 128 characters.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.model.errors import BadName

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def check_name(name: str) -> str:
    """Return `name` if it may name a stream; raise `BadName` with the rule otherwise.

    >>> check_name("monitor1")
    'monitor1'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise BadName(
            f"a stream name must be 1 to 128 of a-z 0-9 . _ - beginning with a letter or digit and without '..'; "
            f"got {name!r:.150}; choose a name such as 'monitor1'"
        )
    return name


def contained(root: Path, *parts: str) -> Path:
    """The path `root/parts…`, refused if symbolic links or dots lead outside `root`."""
    path = root.joinpath(*parts)
    if not path.resolve().is_relative_to(root.resolve()):
        raise BadName(f"the path must stay below {root}; got {path}; remove the link that leads outside")
    return path
