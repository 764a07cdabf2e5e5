"""Archiving, looking and restoring by the command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

COLUMNS = "n bigint, text string"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "streams")


def rows(first: int, upto: int) -> bytes:
    return b"".join(b'{"n": %d, "text": "%s"}\n' % (n, b"x" * 200) for n in range(first, upto))


def test_a_stream_is_archived_looked_at_and_restored(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    url = f"file://{tmp_path}/archive"
    cli.ok("create", "s", "--schema", COLUMNS, "--archive", url, "--retain-size", "10kB", "--archive-age", "365d")
    cli.ok("send", "s", stdin=rows(0, 300))
    done = cli.objects("archive", "s", "--seal")[0]
    assert 0 < done["tuples"] <= 300, "the sender has archived some of it already"
    (facts,) = cli.objects("streams")
    assert facts["tuples"] == 300
    assert facts["archive"]["tuples"] == 300
    assert facts["archive"]["waiting_segments"] == 0
    assert facts["archived_only_bytes"] > 0
    assert "on disk: size 10000 bytes" in " ".join(facts["retained"].split())
    assert f"archive {url} has " in facts["retained"]
    assert "s: " in cli.ok("verify", "s", "--archive")
    assert "sound" in cli.ok("verify", "s")
    shutil.rmtree(cli.root)
    told = cli.ok("restore", "s", "--archive", url)
    assert "300 tuples" in told
    assert "the archive ends at tuple 300" in told
    assert "sound" in cli.ok("verify", "s", "--archive")
    cli.ok("send", "s", "--end", stdin=rows(300, 310))
    assert len(cli.objects("tail", "s", "-n", "1000")) == 310
    next((tmp_path / "archive").rglob("*.seg")).unlink()
    assert "is missing in the archive" in cli.run("verify", "s").stdout
    missing = cli.run("restore", "s", "--archive", url, "--root", str(tmp_path / "other"))
    assert missing.returncode == 1
    assert "missing in the archive: " in missing.stdout


def test_what_cannot_be_done_is_said(cli: Cli, tmp_path: Path) -> None:
    cli.ok("create", "plain", "--schema", COLUMNS)
    assert "has no archive" in cli.fails("archive", "plain")
    assert "without credentials" in cli.fails("restore", "s", "--archive", "s3://me:secret@bucket/x")
    assert "secret" not in cli.fails("create", "t", "--schema", COLUMNS, "--archive", "s3://me:secret@bucket/x")
    gone = f"file://{tmp_path}/gone"
    cli.ok("create", "s", "--schema", COLUMNS, "--archive", gone)
    cli.ok("send", "s", stdin=rows(0, 10))
    assert "mount it" in cli.fails("archive", "s", "--seal")
    (_, facts) = cli.objects("streams")
    assert "archiving fails since" in facts["retained"]
    assert facts["archive"]["errors_total"] >= 1
