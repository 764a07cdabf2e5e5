"""The names that a user finds."""

from __future__ import annotations

import holdfast


def test_every_public_name_is_listed_and_there() -> None:
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert {"App", "connect"} <= set(dir(holdfast))
    assert all(getattr(holdfast, name) is not None for name in holdfast.__all__)
