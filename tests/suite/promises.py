"""The promises by their labels, and which test checks which.

The list is the table of labels in docs/promises.md. A test checks a promise if it cites the label: in its module's or
class's docstring, or anywhere in its own text. `D1–D4` and `D1 to D4` cite four.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "promises.md"
#: Not after a percent sign: `%C2` is a byte in an address.
_CITED = re.compile(r"(?<![\w%])([A-Z])(\d{1,2})(?:(?:–| to )\1(\d{1,2}))?\b")


def promises(page: str | None = None) -> dict[str, str]:
    """Label and sentence, in the order of the table."""
    text = PAGE.read_text() if page is None else page
    return dict(re.findall(r"^\| ([A-Z]\d{1,2}) \| (.+?) \|$", text, re.MULTILINE))


def cited(text: str) -> set[str]:
    """The labels that a text cites, whether there is such a promise or not.

    >>> sorted(cited("right in the end (D3, L1–L3)"))
    ['D3', 'L1', 'L2', 'L3']
    """
    found = set()
    for letter, first, last in _CITED.findall(text):
        found |= {f"{letter}{n}" for n in range(int(first), int(last or first) + 1)}
    return found


def labels_of(item: pytest.Item) -> set[str]:
    """The promises that a test checks."""
    assert isinstance(item, pytest.Function)
    texts = [item.module.__doc__, item.cls.__doc__ if item.cls is not None else None]
    try:
        texts.append(inspect.getsource(item.function))
    except (OSError, TypeError):  # Hypothesis writes some of its tests itself.
        texts.append(item.function.__doc__)
    return set().union(*(cited(text) for text in texts if text))
