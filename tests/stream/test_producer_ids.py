"""Several sources share one producer, each with sequence numbers of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import BadName, SchemaError
from holdfast.stream.producer import _Request
from holdfast.stream.record import FORGET, PRODUCERS_MAX, Commit, State


def test_each_source_counts_for_itself_and_is_remembered_after_reopening(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    with stream.producer() as producer:
        assert not producer.send({"n": 1}, seq=5, producer_id="a").duplicate
        assert not producer.send({"n": 2}, seq=5, producer_id="b").duplicate
        assert producer.send({"n": 3}, seq=5, producer_id="a").duplicate
        producer.close(end=False)
    with stream.producer() as producer:
        assert producer.last_seq_of("a") == producer.last_seq_of("b") == 5
        assert producer.send({"n": 4}, seq=4, producer_id="b").duplicate
    assert [row.values["n"] for row in stream.subscribe().rows(timeout=0)] == [1, 2]


def test_the_source_silent_longest_is_forgotten_first() -> None:
    state = State()
    for n in range(PRODUCERS_MAX):
        state = state.after(n, Commit(0, 0, 1, 0, tokens={f"p{n}": n}))
    state = state.after(0, Commit(0, 0, 1, 0, tokens={"p0": 7}))
    state = state.after(0, Commit(0, 0, 1, 0, tokens={"new": 1}))
    assert len(state.tokens) == PRODUCERS_MAX
    assert "p1" not in state.tokens
    assert state.tokens["p0"] == 7


def test_an_id_that_nobody_will_use_again_can_be_taken_out() -> None:
    state = State().after(1, Commit(0, 0, 1, 0, tokens={"p": 1, "q": 2}))
    assert state.after(2, Commit(0, 0, 1, 0, tokens={"q": FORGET})).tokens == {"p": 1}
    assert state.after(2, Commit(0, 0, 1, 0, tokens={"q": FORGET, "p": 2})).tokens == {"p": 2}


def test_a_repetition_of_a_refused_request_in_the_same_group_is_refused_too(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    with stream.producer() as producer:
        bad, good = _Request(rows=({"n": "x"},), numbers={"a": 1}), _Request(rows=({"n": 1},), numbers={"a": 2})
        first, repeated, accepted, again = producer._commit([bad, bad, good, good])
        assert isinstance(first, SchemaError)
        assert isinstance(repeated, SchemaError)
        assert not accepted.duplicate  # type: ignore[union-attr]
        assert again.duplicate  # type: ignore[union-attr]


def test_a_source_id_is_a_plain_name(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path).create("s", "n bigint").producer() as producer,
        pytest.raises(BadName),
    ):
        producer.send({"n": 1}, seq=1, producer_id="../x")


def test_segments_without_a_manifest_are_never_taken_for_an_empty_branch(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    with stream.producer() as producer:
        producer.send({"n": 1})
    for manifest in (stream.folder / "main").glob("manifest-*"):
        manifest.unlink()
    kept = sorted((stream.folder / "main").glob("*.seg"))
    for use in (stream.writer, stream.reader):
        with pytest.raises(holdfast.CorruptLog, match="the manifest is lost"):
            use()
    assert sorted((stream.folder / "main").glob("*.seg")) == kept
