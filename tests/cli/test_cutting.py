"""Links are named by people; each text means one thing, or is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import App
from holdfast.cli.cutting import Cut, cuts_meant
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import load_deployment
from holdfast.host.host import Host
from holdfast.model.errors import UsageError
from tests.host.scripted_engine import ScriptedEngine


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


def test_a_host_says_what_is_cut_in_words_that_it_understands(tmp_path: Path) -> None:
    app = App("x")
    app.node(inputs=["s"], name="n")(lambda rows: rows)
    (tmp_path / "x.yaml").write_text(
        'app: x.py\nhosts: {b: {address: "127.0.0.1:7402", root: b}, a: {address: "127.0.0.1:7401", root: a}}\n'
        "sources: {s: a}\nnodes: {n: [a, b]}\n"
    )
    known = Catalog(app.diagram(), load_deployment(tmp_path / "x.yaml"))
    hosts = [Host(name, known, tmp_path / name, ScriptedEngine()) for name in ("a", "b")]
    for host in hosts:
        host.fault({"cut": ["a-b", f"s>{host.name}"]})
        assert host.status()["cuts"] == ["b-a", f"s>{host.name}"]  # In the order of the deployment, at both ends.
        assert host.fault({"heal": host.status()["cuts"]}) == {"cuts": []}
