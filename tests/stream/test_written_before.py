"""What earlier versions have written opens, or is refused with a sentence: `tests/stream/samples` has what each left.

`tests.stream.sample_streams` says what is in a sample, and made it. What needs Spark is in
`tests/spark/test_written_before.py`.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import holdfast
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores import open_store
from holdfast.model.errors import CorruptLog
from holdfast.stream.archive.restore import restore_stream
from holdfast.stream.checking.verify import verify
from holdfast.stream.report import report_path
from tests.checkpoint.servers import RedisServer
from tests.stream.sample_streams import ARCHIVED, TEXT
from tests.stream.test_subscriber import polled, send

SAMPLES = sorted(Path(__file__).with_name("samples").glob("*.tar.gz"))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.name.partition(".")[0])
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_failure_that_an_earlier_version_was_in_goes_on_to_its_end(sample: Path) -> None:
    """Its branch and report are read; who had acknowledged two tuples goes on behind them; corrections follow."""
    stream = holdfast.open(sample / "streams").open("corrected")
    assert not list(verify(stream.folder))
    with stream.subscribe(name="frame", resume=True, tentative=True) as subscriber:
        report_path(stream.folder).touch()  # The producer lives.
        assert polled(subscriber) == [2, "~3", "~4", "~5"]
        send(stream, range(3, 7))
        stream.drop_branch()
        assert polled(subscriber)[0] == "UNDO after 3"
    assert [row.values["n"] for row in stream.subscribe().rows(timeout="1s")] == list(range(7))


def test_an_archive_of_an_earlier_version_brings_the_stream_back(sample: Path) -> None:
    restore_stream(sample / "again", "archived", f"file://{sample}/archive", now_us=1)
    rows = holdfast.open(sample / "again").open("archived").subscribe().rows(timeout="1s")
    assert [(row.values["n"], row.values["text"]) for row in rows] == [(n, TEXT) for n in ARCHIVED[:-1]], (
        "and the last is not sealed yet"
    )


@pytest.mark.parametrize("name", ["on-demand", "wider"])
def test_a_stream_of_another_format_goes_on(sample: Path, name: str) -> None:
    stream = holdfast.open(sample / "streams").open(name)
    send(stream, range(3, 5))
    assert [row.values["n"] for row in stream.subscribe().rows(timeout="1s")] == list(range(5))


def test_what_a_later_version_wrote_is_refused_with_a_sentence(sample: Path) -> None:
    with pytest.raises(CorruptLog, match="stream: the file has another format than 1; upgrade Holdfast"):
        holdfast.open(sample / "streams").open("later")


@pytest.mark.parametrize("kind", ["files", "log", "redis"])
def test_checkpoints_in_a_store_of_an_earlier_version_are_there(sample: Path, kind: str) -> None:
    server = RedisServer(sample / "redis") if kind == "redis" else None
    try:
        with open_store(f"{kind}:{sample}/{kind}" if server is None else server.address) as store:
            keys = [b"key %d" % n for n in range(5)]
            found = {key: saved.value for key, saved in store.get_many(keys).items() if saved is not None}
            assert found == {b"key %d" % n: b"%d of 2" % n for n in range(4)}
            assert {key: version for key, version in store.scan(b"key") if key in found} == dict.fromkeys(found, 2)
            assert store.put_many([Entry(b"key 0", 1, b"older"), Entry(b"key 1", 3, b"newer")]) == [False, True]
            saved = store.get_many([b"key 0", b"key 1"])
            assert [saved[key].value for key in (b"key 0", b"key 1")] == [b"0 of 2", b"newer"]
    finally:
        if server is not None:
            server.stop()
