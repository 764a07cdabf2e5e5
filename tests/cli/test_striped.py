"""The verbs know a striped stream: those that it makes sense for take it, the others name its stripes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

ROWS = b"".join(json.dumps({"caller": f"c{n % 7}", "seconds": n}).encode() + b"\n" for n in range(40))


@pytest.fixture
def calls(cli: Cli) -> Cli:
    said = cli.ok("create", "calls", "--schema", "caller string, seconds bigint", "--bucket", "100ms", "--stripes", 3,
                  "--stripe-by", "caller")  # fmt: skip
    assert said == f"created calls (caller string, seconds bigint) as calls.s0, calls.s1, calls.s2 in {cli.root}\n"
    return cli


def test_rows_that_are_sent_are_dealt_and_read_as_one_stream(calls: Cli, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_bytes(ROWS)
    assert calls.ok("send", "calls", file) == "calls: 40 tuples sent\n"
    assert calls.ok("send", "calls", file).startswith("calls: 0 tuples sent;"), "its place is kept in the stripes"
    with file.open("ab") as more:
        more.write(b'{"caller": "c1", "seconds": 40}\n')
    assert calls.ok("send", "calls", file, "--end") == "calls: 1 tuple sent; the stream has ended\n"
    found = calls.objects("tail", "calls", "--from", "beginning")
    assert sorted(row["values"]["seconds"] for row in found) == list(range(41))
    assert len(calls.objects("tail", "calls", "-n", 5)) == 5
    parts = [calls.objects("tail", f"calls.s{n}", "--from", "beginning") for n in range(3)]
    assert sum(map(len, parts)) == 41
    keys = [{row["values"]["caller"] for row in part} for part in parts]
    assert sum(map(len, keys)) == 7, "each caller is in one stripe"


def test_what_there_is_to_see_and_to_check_is_that_of_the_stripes(calls: Cli) -> None:
    calls.ok("send", "calls", "-", stdin=ROWS)
    facts = {fact["name"]: fact for fact in calls.objects("streams")}
    assert set(facts) == {"calls", "calls.s0", "calls.s1", "calls.s2"}
    assert facts["calls"]["stripes"] == ["calls.s0", "calls.s1", "calls.s2"]
    assert facts["calls"]["tuples"] == sum(facts[f"calls.s{n}"]["tuples"] for n in range(3)) == 40
    assert "3 stripes, by caller" in calls.ok("streams")
    assert [line["problems"] for line in calls.objects("verify", "calls")] == [0, 0, 0]
    assert len(calls.objects("verify")) == 3
    assert calls.ok("retain", "calls", "--size", "1GB").count("removed 0 tuples") == 3
    assert calls.ok("retain", "calls", "--show").count("keep for ever") == 3


def test_deleting_it_removes_its_stripes(calls: Cli) -> None:
    assert "cannot be undone" in calls.fails("delete", "calls")
    assert calls.ok("delete", "calls", "--yes") == "deleted calls\n"
    assert calls.objects("streams") == []
    assert list(calls.root.iterdir()) == []


def test_what_is_archived_of_it_is_said_to_stay(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "archive").as_uri()
    cli.ok("create", "c", "--schema", "n bigint", "--stripes", 2, "--archive", url)
    assert cli.ok("delete", "c", "--yes") == f"deleted c; what is archived of it stays in {url}\n"


def test_damage_of_the_file_that_makes_it_one_is_found_and_can_be_deleted(calls: Cli) -> None:
    path = calls.root / "calls" / "stripes"
    path.write_bytes(path.read_bytes().replace(b"caller", b"callem"))
    for words in (("verify",), ("verify", "calls")):
        done = calls.run(*words)
        assert done.returncode == 1
        assert "does not match its checksum; bring it back from a copy" in done.stdout
        assert done.stdout.count("checked, sound") == 3, "the stripes are checked all the same"
    assert "repair" not in calls.fails("tail", "calls")
    assert "is a stripe of calls" in calls.fails("delete", "calls.s1", "--yes")
    assert calls.ok("delete", "calls", "--yes") == "deleted calls\n"
    assert list(calls.root.iterdir()) == []


def test_a_stripe_that_is_not_there_is_found(calls: Cli) -> None:
    shutil.rmtree(calls.root / "calls.s1")
    done = calls.run("verify")
    assert done.returncode == 1
    assert "no stream 'calls.s1'" in done.stdout


def test_verbs_for_one_log_name_the_stripes(calls: Cli) -> None:
    for words in (
        ("repair", "calls"), ("archive", "calls"), ("replay", "calls"), ("tail", "calls", "--tentative"),
        ("mend-boundary", "calls", "--to", "2026-03-01"), ("send", "calls", "--kafka", "127.0.0.1:1"),
    ):  # fmt: skip
        assert "striped" in calls.fails(*words)
    refused = calls.fails("create", "x", "--schema", "n int", "--stripe-by", "n", code=2)
    assert "--stripe-by goes with --stripes" in refused
    assert "exists already: 3 stripes" in calls.fails("create", "calls", "--schema", "n int", "--stripes", 2)
