"""`holdfast contracts`, `load` and `move` against real hosts (which run their query in plain Python)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.deployment import load_deployment
from holdfast.load.host_extension import check_all_at_home
from holdfast.load.remote_task import AwayNote, remove_note, write_note
from tests.cli.conftest import InsideCli
from tests.faults.deployment import wait_us
from tests.load.federation import Federation, Owner

CLAUSES = "price: 0.1 to 5.0, period: 3s, permits: [counts-m1]"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    owners = [
        Owner("anna", ["m1", "m2"], [f"to: ben, {CLAUSES}", "from: carl, price: 1"]),
        Owner("ben", [], [f"from: anna, {CLAUSES}", "to: carl, price: 3, permits: [count-m1]"]),
        Owner("carl", [], ["to: anna, price: 2"]),
    ]
    federation = Federation(tmp_path_factory.mktemp("two"), owners, plain=True)
    try:
        federation.start("anna", "ben")
        for node in ("counts-m1", "counts-m2"):
            federation.wait(lambda n=node: federation.runs_at("anna", n) == "anna", f"{node} to run")
        federation.wait(lambda: federation.ask("anna", "/v1/contracts")["contracts"][0]["agreed"], "consent")  # type: ignore[index]
        yield federation
    finally:
        federation.end()


@pytest.fixture
def cli(tmp_path: Path) -> InsideCli:
    return InsideCli(tmp_path / "streams")


def file(two: Federation) -> str:
    return str(two.file("anna"))


@pytest.mark.slow
def test_a_node_is_moved_and_taken_back_by_hand_and_the_tables_say_so(
    two: Federation, cli: InsideCli, tmp_path: Path
) -> None:
    said = cli.ok("move", file(two), "counts-m1", "ben")
    assert "offered to ben at 0.1 to 5" in said
    assert "runs at ben after" in said
    shown = cli.ok("contracts", file(two))
    assert "counts-m1" in shown
    assert " yes" in shown
    (load,) = cli.objects("load", file(two))
    assert {task["task"]: task["at"] for task in load["tasks"]} == {"counts-m1": "ben", "counts-m2": "anna"}
    assert "counts-m1" in cli.ok("load", file(two))
    assert "(AWAY): it runs at ben" in cli.ok("status", file(two))
    page: Any = None

    def shown_at_ben() -> bool:
        """The page looks every so often."""
        nonlocal page
        page = two.ask("anna", "/v1/console")
        if page is None or page["loads"]["anna"]["tasks"]["counts-m1"]["at"] != "ben":
            return False
        away = page["replicas"]["counts-m1@anna"]["state"] == "AWAY"
        said = [(e["kind"], e["text"]) for e in page["events"]]
        return away and ("movement", "counts-m1 moved from anna to ben") in said

    assert wait_us(shown_at_ben, 30) is not None, page
    assert [contract["seller"] for contract in page["loads"]["anna"]["contracts"].values()] == ["ben", "anna"]
    assert "runs at anna after" in cli.ok("move", file(two), "counts-m1", "anna")
    cli.ok("load", file(two), "--picture", str(tmp_path / "load.html"))
    assert "counts-m1" in (tmp_path / "load.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "to", "sentence"),
    [
        ("nothing", "ben", "no node 'nothing' in application"),
        ("counts-m1", "dora", "no partner 'dora' of 'anna'"),
        ("counts-m1", "carl", "has no contract to move load to 'carl'"),
        ("counts-m2", "ben", "permits counts-m1; not counts-m2"),
    ],
)
def test_what_cannot_be_moved_is_said_in_one_sentence(
    two: Federation, cli: InsideCli, node: str, to: str, sentence: str
) -> None:
    said = cli.fails("move", file(two), node, to)
    assert sentence in said
    assert "/v1/" not in said, "how hosts are asked is nobody's business"


@pytest.mark.slow
def test_a_partner_that_is_down_or_has_signed_something_else_is_shown(two: Federation, cli: InsideCli) -> None:
    shown = cli.ok("contracts", file(two))
    assert "could not be reached" in shown, "carl is down"
    shown = cli.ok("contracts", str(two.file("ben")))
    assert "ben.carl" in shown
    assert "it permits count-m1, and neither our application nor our definitions have such a node" in shown


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["load", "contracts"])
def test_hosts_that_are_all_down_are_a_failure(two: Federation, cli: InsideCli, verb: str) -> None:
    assert "host 'carl'" in (said := cli.fails(verb, str(two.file("carl"))))
    assert "`holdfast up` starts it" in said


def test_a_host_does_not_start_without_its_contracts_while_a_node_of_its_is_away(
    cli: InsideCli, tmp_path: Path
) -> None:
    """It would compute again what the partner has sent, and write both into one stream."""
    federation = Federation(tmp_path, [Owner("anna", ["m1"], ["to: ben, price: 1"]), Owner("ben", [])])
    federation.end()
    net = federation.file("anna")
    net.write_text(net.read_text().replace(", load: terms.yaml", ""))
    homes = tmp_path / "anna" / "data" / ".holdfast" / "nodes"
    for node in ("counts-m1", "counts-of-yesterday"):
        (homes / node).mkdir(parents=True)
        write_note(homes / node, AwayNote("anna:1#0", "ben"))
    said = cli.fails("host", str(net), "anna")
    assert "host 'anna'" in said
    assert "must keep its load: FILE while counts-m1 runs at ben's" in said
    remove_note(homes / "counts-m1")
    check_all_at_home(load_deployment(net), load_deployment(net).host("anna"))


@pytest.mark.slow
def test_tokens_are_made_once(two: Federation, cli: InsideCli) -> None:
    assert "is there; shared with ben" in cli.ok("contracts", file(two), "--make-tokens")
