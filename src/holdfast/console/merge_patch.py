"""The difference between two JSON objects as a merge patch (RFC 7386): the members that changed, null for those that
went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def patch_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the second of the first. A member that is None counts as one that is not there.

    >>> patch_of({"a": 1, "b": {"c": 1, "d": 2}, "e": 3}, {"a": 1, "b": {"c": 5, "d": 2}})
    {'b': {'c': 5}, 'e': None}
    """
    patch: dict[str, Any] = {}
    for name, new in after.items():
        old = before.get(name)
        if new is old or new == old:
            continue
        if isinstance(new, dict) and isinstance(old, dict):
            patch[name] = patch_of(old, new)
        else:
            patch[name] = new
    for name, old in before.items():
        if name not in after and old is not None:
            patch[name] = None
    return patch


def patched(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """The document that the patch makes of this one, which stays as it was.

    >>> patched({"a": 1, "b": {"c": 1, "d": 2}, "e": 3}, {"b": {"c": 5}, "e": None})
    {'a': 1, 'b': {'c': 5, 'd': 2}}
    """
    made = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = patched(made.get(name), value) if isinstance(value, dict) else value
    return made
