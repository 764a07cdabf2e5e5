"""Every bad input gives one clear sentence and loses nothing that was acknowledged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.main import _plainly
from holdfast.inputs.generator import Generator
from tests.cli.conftest import SCHEMA, Cli


def test_unknown_stream(cli: Cli, inside: Cli) -> None:
    assert "no stream 'nope'" in cli.fails("tail", "nope")
    for verb in ("send", "verify", "repair", "retain", "replay"):
        assert "no stream 'nope'" in inside.fails(verb, "nope")
    assert "no stream 'nope'" in inside.fails("delete", "nope", "--yes")


@pytest.mark.parametrize("name", ["../s", "a..b", "/etc/passwd", "A", ""])
def test_a_name_that_leads_elsewhere(cli: Cli, inside: Cli, name: str) -> None:
    """X2"""
    assert "a stream name must be" in cli.fails("create", name, "--schema", SCHEMA)
    for verb in ("tail", "verify", "repair"):
        assert "a stream name must be" in inside.fails(verb, name)


@pytest.mark.parametrize(
    ("schema", "why"),
    [("source text", "unknown type"), ("stime bigint", "belongs to the tuple header"), ("", "at least one column"),
     ("a int, a int", "must differ"), ("a int b", "expected ','")],
)  # fmt: skip
def test_wrong_schema(cli: Cli, schema: str, why: str) -> None:
    assert why in cli.fails("create", "s", "--schema", schema)
    assert not (cli.root / "s").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [(("--bucket", "soon"), "a duration must look like"), (("--partitions", "0"), "partitions must be"),
     (("--partition-by", "nope"), "must name a column"), (("--bound", "much"), "a size must look like")],
)  # fmt: skip
def test_wrong_options(inside: Cli, options: tuple[str, ...], why: str) -> None:
    assert why in inside.fails("create", "s", "--schema", SCHEMA, *options)


@pytest.mark.parametrize(
    "args",
    [("nonsense",), ("create",), ("tail", "s", "--nonsense"), ("send", "s", "--format", "xml"),
     ("send", "s", "--tcp", "x"), ("replay", "s", "--speed", "0"), ("tail", "s", "--from", "bucket:x"),
     ("send", "s", "--count", "3")],
)  # fmt: skip
def test_a_command_that_cannot_be_understood_is_code_2(filled: Cli, inside: Cli, args: tuple[str, ...]) -> None:
    inside.fails(*args, code=2)


def test_an_existing_stream(filled: Cli, inside: Cli) -> None:
    assert "exists already" in inside.fails("create", "s", "--schema", SCHEMA)


def test_a_row_that_does_not_fit(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    said = cli.fails("send", "s", stdin=b'{"bytes": 1}\n{"bytes": "many"}\n{"bytes": 3}\n')
    assert "standard input line 2: column 'bytes' must be bigint; got \"many\"" in said
    assert holdfast.open(cli.root).open("s").reader().rows == 1


def test_an_stime_before_the_boundary(cli: Cli) -> None:
    """D10"""
    cli.ok("create", "s", "--schema", "n bigint")
    for rows, fits in ((b'{"n": 100}', True), (b'{"n": 5}', False)):
        args = ("send", "s", "--stime", "n", "--stime-unit", "s")
        if fits:
            cli.ok(*args, stdin=rows)
        else:
            assert "standard input line 1: stream s: a tuple at" in cli.fails(*args, stdin=rows)
    assert "1 too late or early" in cli.ok(
        "send", "s", "--stime", "n", "--stime-unit", "s", "--late", "drop", stdin=b'{"n": 5}'
    )
    assert holdfast.open(cli.root).open("s").reader().rows == 1


def test_a_corrupt_segment(filled: Cli) -> None:
    """L4"""
    (path,) = (filled.root / "s" / "main").glob("*.seg")
    data = bytearray(path.read_bytes())
    data[900] ^= 8
    path.write_bytes(bytes(data))
    assert f"{path} at byte" in filled.fails("tail", "s", "--from", "beginning")
    done = filled.run("verify", "s")
    assert done.returncode == 1
    assert f"error: {path} at byte" in done.stdout


def test_a_corrupt_index_changes_no_answer(filled: Cli, inside: Cli) -> None:
    """L5"""
    before = inside.ok("tail", "s")
    (path,) = (filled.root / "s" / "main").glob("*.idx")
    path.write_bytes(b"rot")
    assert filled.ok("tail", "s") == before
    assert "the index does not match" in filled.run("verify", "s").stdout


def test_a_corrupt_definition(filled: Cli) -> None:
    path = filled.root / "s" / "stream"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"bytes", b"bytez", 1))
    assert "does not match its checksum" in filled.fails("tail", "s")
    assert filled.run("verify", "s").returncode == 1
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    filled.ok("repair", "s", "--apply")
    assert path.read_bytes() == data


def test_a_second_writer(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    with cli.started("send", "s", "--tcp", 0, "--json") as first:
        assert first.stdout is not None
        assert json.loads(first.stdout.readline())["listening"] == "tcp"
        assert "is writing to it" in cli.fails("send", "s", stdin=b'{"bytes": 1}')
        assert "is writing to it" in cli.fails("delete", "s", "--yes")
        assert "a writer lives" in cli.fails("repair", "s", "--apply")
        assert cli.objects("streams")[0]["writer"]
        cli.ok("verify", "s")
        assert "1 tuple" in cli.ok("send", "s", "--takeover", stdin=b'{"bytes": 2}')
    assert holdfast.open(cli.root).open("s").reader().rows == 1


def test_an_interrupted_append_loses_nothing_acknowledged(cli: Cli) -> None:
    """L1"""
    cli.ok("create", "s", "--schema", SCHEMA)
    with cli.started("send", "s", "--generate", "5000") as sender:
        reader = holdfast.open(cli.root).open("s").subscribe()
        seen = next(iter(reader)).num_rows
        sender.send_signal(signal.SIGKILL)
        sender.wait()
    reader.close()
    cli.ok("verify", "s")
    assert "tuples sent" in cli.ok(
        "send", "s", "--generate", 0, "--count", 1_000_000 if seen > 900_000 else seen + 500_000
    )
    rows = [r.values for r in holdfast.open(cli.root).open("s").subscribe().rows(timeout=0)]

    make = Generator(holdfast.open(cli.root).open("s").definition.schema)
    assert rows[:2000] == [make.row(n) for n in range(2000)]
    assert len(rows) >= seen


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one mebibyte."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk(tiny: Path) -> None:
    """L9"""
    cli = Cli(tiny / "streams")
    cli.ok("create", "s", "--schema", SCHEMA)
    cli.ok("send", "s", stdin=b'{"bytes": 1}\n')
    rows = b"".join(b'{"source": "%s", "bytes": %d}\n' % (b"x" * 500, n) for n in range(4000))
    said = cli.fails("send", "s", stdin=rows)
    assert "No space left on device" in said
    assert "nothing acknowledged was lost" in said
    (fact,) = cli.objects("streams")
    assert fact["tuples"] >= 1
    cli.ok("verify", "s")
    assert cli.objects("tail", "s", "--from", "beginning")[0]["values"]["bytes"] == 1


def test_a_read_only_folder(tiny: Path) -> None:
    cli = Cli(tiny / "streams")
    cli.ok("create", "s", "--schema", SCHEMA)
    cli.ok("send", "s", stdin=b'{"bytes": 1}\n')
    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    for args in (("create", "t", "--schema", SCHEMA), ("send", "s"), ("delete", "s", "--yes"), ("retain", "s")):
        assert "ead-only" in cli.fails(*args, stdin=b'{"bytes": 2}')
    assert "bytes=1" in cli.ok("tail", "s")
    assert "sound" in cli.ok("verify", "s")
    assert "in order" in cli.ok("repair", "s")


def test_a_file_that_cannot_be_opened_is_named_without_an_error_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verb() -> None:
        (tmp_path / "none" / "picture.html").write_text("")

    with pytest.raises(SystemExit):
        _plainly(verb)()
    told = capsys.readouterr().err
    assert told.startswith(f"holdfast: {tmp_path}/none/picture.html: No such file or directory; check the path")
