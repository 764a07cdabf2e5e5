"""The file of a participant: what it must say, and the one sentence that follows when it does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.app_file import load_app
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import load_deployment
from holdfast.load.contract_file import is_older_id, load_terms
from holdfast.model.errors import UsageError
from holdfast.stream.disk import Disk

ANNA = """
participant: anna
capacity: {cpu: 2}
partners:
  ben: {address: "http://127.0.0.1:7402", token: pair.token}
contracts:
  - {to: ben, price: 0.8 to 1.0, period: 10s, permits: [b, a]}
  - {from: ben, price: 2, period: 20s, onward: false}
"""
BEN = """
participant: ben
capacity: {cpu: 1}
partners:
  anna: {address: "http://127.0.0.1:7401", token: pair.token}
contracts:
  - {from: anna, price: 0.8 to 1.0, period: 10000ms, permits: [a, b]}
  - {to: anna, price: 2, period: 20s, onward: true}
"""


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return path


def test_the_clauses_of_a_contract_are_read_as_written(tmp_path: Path) -> None:
    terms = load_terms(written(tmp_path, "anna", ANNA))
    there, back = terms.plan.contracts
    assert (there.buyer, there.seller, there.price_low, there.price_high) == ("anna", "ben", 0.8, 1.0)
    assert (there.period_us, there.permits, there.onward) == (10_000_000, ("a", "b"), True)
    assert (back.buyer, back.fixed, back.onward) == ("ben", True, False)
    assert terms.partner("ben").token_file == tmp_path / "pair.token"


def test_two_files_with_the_same_clauses_make_a_contract_and_with_others_none(tmp_path: Path) -> None:
    anna, ben = load_terms(written(tmp_path, "anna", ANNA)), load_terms(written(tmp_path, "ben", BEN))
    assert anna.plan.contracts[0].contract_id == ben.plan.contracts[0].contract_id
    assert anna.plan.contracts[1].contract_id != ben.plan.contracts[1].contract_id, "onward differs"


def test_nobody_can_find_other_clauses_with_the_same_id(tmp_path: Path) -> None:
    """An id was a checksum of 32 bits: other clauses with the same one are found in minutes."""
    contract_id = load_terms(written(tmp_path, "anna", ANNA)).plan.contracts[0].contract_id
    assert re.fullmatch(r"anna\.ben\.[0-9a-f]{32}", contract_id)
    assert not is_older_id(contract_id)
    assert is_older_id("anna.ben.00c0ffee")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("cpu: 2", "cpu: -2"), "capacities must be positive"),
        (("0.8 to 1.0", "cheap"), "must be a number or a range such as"),
        (("0.8 to 1.0", "1.0 to 0.8"), "must go from the lowest, 0 or more, to the highest, .*; got '1.0 to 0.8'"),
        (("period: 10s", "period: soon"), "anna.yaml: a duration must look like"),
        (("permits", "permit"), "unknown field `permit` .*; it may have price, to, from, period, permits, onward, u"),
        (("token:", "tokens:"), "unknown field `tokens` .*; it may have address, token, ca;"),
        (("cpu: 2", "gpu: 2"), "unknown field `gpu` .*; it may have cpu, bandwidth, memory;"),
        (("to: ben", "to: carl"), "is with 'carl', who is not among the partners"),
        (("to: ben, ", ""), "must have a direction"),
        (("http://127", "http://10"), "must be https, or of this machine"),
        (("http://127.0.0.1:7402", "ben"), "must look like https://name:port"),
        (("http://127.0.0.1:7402", "http://127.0.0].1:7402"), "must look like https://name:port"),
        (("http://127.0.0.1:7402", "http://127.0.0.1:75020"), "must look like https://name:port"),
        (("capacity", "capacities"), "docs/load-sharing.md shows every word"),
        (("period: 10s", "period: 1s"), "at least twice the time allowed for an answer"),
        (("participant: anna", "participant: A/na"), "must be 1 to 128 of a-z"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        load_terms(written(tmp_path, "anna", ANNA.replace(*change, 1)))


def test_the_example_of_two_owners_fits_together() -> None:
    folder = Path(__file__).parents[2] / "examples" / "sharing"
    anna, ben = load_terms(folder / "anna-terms.yaml"), load_terms(folder / "ben-terms.yaml")
    assert [c.contract_id for c in anna.plan.contracts] == [c.contract_id for c in ben.plan.contracts]
    assert load_app(ben.definitions or "", folder).diagram().node("counts").inputs == ("connections",)
    for name, terms in (("anna", anna), ("ben", ben)):
        deployment = load_deployment(folder / f"{name}.yaml")
        Catalog(deployment.load_app().diagram(), deployment)
        (host,) = deployment.hosts
        assert host.load == terms.file
        other = ben if terms is anna else anna
        assert other.partner(name).address == host.url


def test_a_token_must_be_there_be_private_and_be_long(tmp_path: Path) -> None:
    partner = load_terms(written(tmp_path, "anna", ANNA)).partner("ben")
    with pytest.raises(UsageError, match="--make-tokens"):
        partner.token()
    assert partner.make_token()
    assert not partner.make_token()
    assert len(partner.token()) > 30
    partner.token_file.chmod(0o644)
    with pytest.raises(UsageError, match="its owner's alone"):
        partner.token()
    partner.token_file.chmod(0o600)
    partner.token_file.write_text("short")
    with pytest.raises(UsageError, match="or more printable characters"):
        partner.token()


def test_the_token_of_a_partner_is_durable_and_whole_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partner gets a copy of it: a power cut could leave an empty file here that nothing would replace."""
    partner = load_terms(written(tmp_path, "anna", ANNA)).partner("ben")
    steps: list[str] = []
    sync, link, sync_dir = Disk.sync, Disk.link, Disk.sync_dir

    def noted(name: str, step: Any) -> Any:
        return lambda self, *args: (steps.append(f"{name} {partner.token_file.exists()}"), step(self, *args))[1]

    for name, step in (("sync", sync), ("link", link), ("sync_dir", sync_dir)):
        monkeypatch.setattr(Disk, name, noted(name, step))
    assert partner.make_token()
    assert steps == ["sync False", "link False", "sync_dir True"]
    assert len(partner.token()) > 30
