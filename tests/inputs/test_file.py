"""A followed file: no line lost, none twice, whatever happens to the file or to us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.inputs.decode import Decoder
from holdfast.inputs.feed import DeadLetters, Feed
from holdfast.inputs.file import FileInput
from holdfast.inputs.stdin import StdinInput
from holdfast.model.errors import LateTuple, SchemaError, StorageError
from tests.inputs.conftest import Target, running, until


def lines(first: int, end: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in range(first, end))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_file_is_sent_once_however_often_it_is_sent(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 2500) + b'{"n": 2500}')
    for _ in range(2):
        with target.feed() as feed:
            FileInput(path, feed, follow=False).run()
    append(path, b"\n" + lines(2501, 2510))
    with target.feed() as feed:
        assert FileInput(path, feed, follow=False).run().rows == 9
    assert target.numbers() == list(range(2510))


def test_what_is_appended_is_followed_and_a_line_waits_for_its_end(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with target.feed() as feed:
        source = FileInput(path, feed, poll="2ms")
        with running(source.run, source.stop):
            path.write_bytes(lines(0, 10))
            until(lambda: feed.total.rows == 10)
            append(path, b'{"n": 1')
            append(path, b"0}\n" + lines(11, 20))
            until(lambda: feed.total.rows == 20)
    assert target.numbers() == list(range(20))


def test_a_renamed_file_is_finished_before_the_new_one_is_begun(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with target.feed() as feed:
        source = FileInput(path, feed, poll="2ms")
        with running(source.run, source.stop):
            for turn in range(4):
                path.write_bytes(lines(turn * 100, turn * 100 + 50))
                until(lambda turn=turn: feed.total.rows >= turn * 100 + 50)  # type: ignore[misc]
                append(path, lines(turn * 100 + 50, turn * 100 + 100))
                path.rename(tmp_path / f"log.{turn}")
            until(lambda: feed.total.rows == 400)
    assert target.numbers() == list(range(400))


def test_a_truncated_file_begins_anew(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 50))
    with target.feed() as feed:
        source = FileInput(path, feed, poll="2ms")
        with running(source.run, source.stop):
            until(lambda: feed.total.rows == 50)
            os.truncate(path, 0)
            append(path, lines(0, 10))
            until(lambda: feed.total.rows == 60)
    with target.feed() as feed:
        assert FileInput(path, feed, follow=False).run().rows == 0
    assert target.numbers() == [*range(50), *range(10)]


def test_a_file_rotated_while_we_were_away_is_finished_first(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 10))
    with target.feed() as feed:
        FileInput(path, feed, follow=False).run()
    append(path, lines(10, 20))
    path.rename(tmp_path / "log.1")
    path.write_bytes(lines(20, 30))
    with target.feed() as feed:
        source = FileInput(path, feed, poll="2ms")
        with running(source.run, source.stop):
            until(lambda: feed.total.rows == 20)
    assert target.numbers() == list(range(30))


def test_a_killed_follower_goes_on_at_the_right_byte(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 5000))
    code = f"""
        import holdfast
        from holdfast.inputs.decode import Decoder
        from holdfast.inputs import feed, file
        feed.LINES_MAX = file.LINES_MAX = 7
        producer = holdfast.open({str(tmp_path / "streams")!r}).open("s").producer()
        print("ready", flush=True)
        file.FileInput({str(path)!r}, feed.Feed(producer, Decoder(producer.row_schema, "s"))).run()
    """
    for turn in range(3):
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        until(lambda turn=turn: len(target.numbers()) > 100 * (turn + 1))  # type: ignore[misc]
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with target.feed() as feed:
        FileInput(path, feed, follow=False).run()
    assert target.numbers() == list(range(5000))


def test_csv_columns_come_from_the_first_line_also_when_resuming(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"word,n\r\na,0\r\nb,1\r\n")
    for _ in range(2):
        with target.feed("csv") as feed:
            FileInput(path, feed, follow=False).run()
        append(path, b"c,2\r\n")
    assert target.numbers() == [0, 1, 2]


def test_a_poison_line_stops_the_input_after_what_came_before_it(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 3) + b'{"n": "x"}\n' + lines(3, 5))
    with target.feed() as feed, pytest.raises(SchemaError, match=r"log line 4: column 'n' must be bigint"):
        FileInput(path, feed, follow=False).run()
    assert target.numbers() == [0, 1, 2]


def test_dead_letters_take_the_poison_and_the_rest_goes_on(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 3) + b"poison\n" + lines(3, 5) + b'{"n": "x"}\n')
    with DeadLetters(tmp_path / "dead") as dead, target.feed(dead=dead) as feed:
        assert FileInput(path, feed, follow=False).run().dead == 2
    with DeadLetters(tmp_path / "dead") as dead, target.feed(dead=dead) as feed:
        assert FileInput(path, feed, follow=False).run() == (0, 0, 0, 0)
    assert target.numbers() == list(range(5))
    text = (tmp_path / "dead").read_text()
    assert text.count("\n") == 2
    assert "log line 4" in text
    assert "poison" in text


def test_a_late_line_is_named_or_put_aside(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"n": 100}\n{"n": 90}\n')
    with target.producer(stime="n", stime_unit="s", slack="5s") as producer:
        feed = Feed(producer, Decoder(producer.row_schema, "s"))
        FileInput(path, feed, follow=False).run()
        append(path, b'{"n": 101}\n{"n": 9}\n{"n": 97}\n')
        with pytest.raises(LateTuple, match=r"log at byte 32: .* too late"):
            FileInput(path, feed, follow=False).run()
        with DeadLetters(tmp_path / "dead") as dead:
            FileInput(path, Feed(producer, feed.decoder, dead), follow=False).run()
    assert sorted(target.numbers()) == [90, 97, 100, 101]
    assert '\\"n\\": 9}' in (tmp_path / "dead").read_text()


def test_a_missing_file_is_said_plainly(target: Target, tmp_path: Path) -> None:
    with target.feed() as feed, pytest.raises(StorageError, match="could not open"):
        FileInput(tmp_path / "none", feed, follow=False).run()


def test_standard_input_can_be_sent_again_under_an_id(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(lines(0, 30) + b'{"n": 30}')
    for expected in (31, 0):
        with target.feed() as feed, path.open("rb") as source:
            assert StdinInput(feed, source=source, id="nightly").run().rows == expected
    assert target.numbers() == list(range(31))
