from __future__ import annotations

from pathlib import Path

import pytest

import holdfast


@pytest.fixture
def store(tmp_path: Path) -> holdfast.StreamStore:
    return holdfast.open(tmp_path / "streams")
