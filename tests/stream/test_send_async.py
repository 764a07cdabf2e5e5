"""Rows that nobody waits for are durable when their future says so (L1), in order, and not without bound (X4)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import SchemaError, UsageError
from holdfast.stream import send_window
from holdfast.stream.send_window import SendWindow


def numbers(stream: holdfast.Stream) -> list[int]:
    return [row.values["n"] for row in stream.subscribe().rows(timeout=0)]


def test_one_thread_shares_commits_with_itself_and_keeps_its_order_l1(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    with stream.producer() as producer:
        before = producer.writer.state.commit_seq
        futures = [producer.send_async({"n": n}, seq=n) for n in range(2000)]
        assert [f.result(60).rows for f in futures] == [1] * 2000
        assert producer.last_seq == 1999
        assert producer.writer.state.commit_seq - before < 1000
        assert producer.send_async({"n": 7}, seq=7).result(60).duplicate
    assert numbers(stream) == list(range(2000))


def test_closing_waits_for_what_is_under_way_l1(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    producer = stream.producer()
    futures = [producer.send_async({"n": n}) for n in range(100)]
    producer.close()
    assert all(future.done() for future in futures)
    assert numbers(stream) == list(range(100))
    with pytest.raises(UsageError, match="was closed"):
        producer.send_async({"n": 1})


def test_a_row_that_does_not_fit_fails_its_own_future_only(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    with stream.producer() as producer:
        futures = [producer.send_async({"n": n}) for n in (1, "two", 3)]
        assert isinstance(futures[1].exception(60), SchemaError)
        assert futures[0].result(60).rows == futures[2].result(60).rows == 1
    assert numbers(stream) == [1, 3]


def test_too_many_under_way_make_the_caller_wait_x4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_window, "OUTSTANDING_MAX", 2)
    go, seen = threading.Event(), list[int]()

    def commit(items: list[int]) -> list[int]:
        assert go.wait(60)
        seen.extend(items)
        return items

    box: SendWindow[int, int] = SendWindow("box", commit)  # type: ignore[arg-type]
    box.put(1)
    box.put(2)
    third = threading.Thread(target=box.put, args=(3,))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    go.set()
    third.join(60)
    box.close()
    assert seen == [1, 2, 3]
