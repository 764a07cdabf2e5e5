"""Links are named by people; each text means one thing, or is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.app import App
from holdfast.host.catalog import Catalog
from holdfast.host.cuts import Cut, cuts_meant
from holdfast.model.errors import UsageError


def catalog() -> Catalog:
    app = App("x")

    @app.node(inputs=["s", "a-b"])
    def n(rows: Any) -> Any:
        return rows

    return Catalog(app.diagram())


def never() -> Catalog:
    raise AssertionError("a pair of hosts needs no application")


def test_a_pair_of_hosts_has_one_spelling_and_needs_no_catalog() -> None:
    for text in ("a-b", "b-a"):
        (cut,) = cuts_meant(text, ("a", "b", "c"), never)
        assert (cut, cut.text) == (Cut(("a", "b")), "a-b")
    (cut,) = cuts_meant("rack-2-rack-1", ("rack-1", "rack-2"), never)
    assert cut.hosts == ("rack-1", "rack-2")


def test_hosts_win_over_a_stream_of_the_same_name_which_can_be_named_with_an_arrow() -> None:
    hosts = ("here", "a", "b")
    assert cuts_meant("a-b", hosts, catalog) == (Cut(("a", "b")),)
    assert cuts_meant("a-b>here", hosts, catalog) == (Cut(("here",), "a-b"),)
    assert cuts_meant("a-b", ("here",), catalog) == (Cut(("here",), "a-b"),)


def test_a_stream_means_each_of_its_readers_and_is_understood_by_them_again() -> None:
    (cut,) = cuts_meant("s", ("here",), catalog)
    assert cut.text == "s>here"
    assert cuts_meant(cut.text, ("here",), catalog) == (cut,)


@pytest.mark.parametrize(
    ("text", "hosts", "why"),
    [
        ("a-b-c", ("a", "b-c", "a-b", "c"), "can be read as"),
        ("", ("a", "b"), "must be HOST-HOST"),
        (">a", ("a", "b"), "must be HOST-HOST"),
        ("s>", ("here",), "must be HOST-HOST"),
        ("s>b", ("here", "b"), "nobody on 'b' reads 's'"),
        ("n", ("here",), "no host reads 'n'"),
    ],
)
def test_a_text_that_means_nothing_or_two_things_is_refused(text: str, hosts: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        cuts_meant(text, hosts, catalog)
