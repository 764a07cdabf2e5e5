"""Names lead nowhere but below the root (X2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import BadName
from holdfast.model.names import check_name, contained


@pytest.mark.parametrize("name", ["a", "0", "monitor1", "a.b-c_d", "a" * 128, "a."])
def test_plain_names_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a..b", "../a", "a/b", "/a", "A", "ä", "a b", "a\n", "a\0", "-a", "_a", "a" * 129, None, 7, b"a"],
)
def test_a_name_that_could_lead_elsewhere_is_refused_with_the_rule(name: object) -> None:
    with pytest.raises(BadName, match="1 to 128 of a-z"):
        check_name(name)  # type: ignore[arg-type]


@given(st.text(max_size=20))
def test_no_text_that_passes_leaves_the_root(name: str) -> None:
    """X2."""
    try:
        path = contained(Path("/nowhere/root"), check_name(name))
    except BadName:
        return
    assert path.parent == Path("/nowhere/root")
    assert path.resolve().parent == Path("/nowhere/root")


def test_a_link_that_leads_outside_is_refused(tmp_path: Path) -> None:
    """X2."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "s").symlink_to(tmp_path)
    with pytest.raises(BadName, match="stay below"):
        contained(tmp_path / "root", "s")
