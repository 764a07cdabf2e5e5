"""Each verb does what its help says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

import holdfast
from holdfast.inputs.kafka import KafkaSource
from holdfast.inputs.kafka_values import ProtobufClass
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.report import ReportWriter, report_path
from holdfast.stream.worth import Worth, note_worth
from tests.cli.conftest import SCHEMA, Cli, _command

VERBS = ["streams", "create", "send", "tail", "replay", "verify", "repair", "mend-boundary", "retain", "delete"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_teaches_with_an_example(inside: Cli, verb: str) -> None:
    assert f"\n  holdfast {verb} " in inside.ok(verb, "--help") + " "
    assert verb in inside.ok("--help")


def test_a_row_goes_in_and_comes_out(cli: Cli) -> None:
    assert "created s" in cli.ok("create", "s", "--schema", SCHEMA)
    assert cli.ok("send", "s", stdin=b'{"source": "a", "bytes": 1}\n') == "s: 1 tuple sent\n"
    assert "source=a  bytes=1" in cli.ok("tail", "s")
    (row,) = cli.objects("tail", "s")
    assert row["values"] == {"source": "a", "bytes": 1}
    assert row["type"] == "INSERTION"


def test_ending_a_stream_says_that_it_has_ended(inside: Cli, tmp_path: Path) -> None:
    inside.ok("create", "s", "--schema", SCHEMA)
    file = tmp_path / "rows.json"
    file.write_text('{"source": "a", "bytes": 1}\n')
    assert inside.ok("send", "s", file) == "s: 1 tuple sent\n"
    said = inside.ok("send", "s", file, "--end")
    assert said == f"s: 0 tuples sent; {file} was sent before (--again sends it once more); the stream has ended\n"
    assert holdfast.open(inside.root).open("s").reader().closed
    inside.ok("create", "t", "--schema", SCHEMA)
    assert inside.ok("send", "t", "/dev/null", "--end") == "t: 0 tuples sent; the stream has ended\n"


def test_send_refuses_a_row_far_ahead_and_takes_it_if_told_so(inside: Cli) -> None:
    inside.ok("create", "s", "--schema", "n bigint, at timestamp")
    row = b'{"n": 1, "at": "9999-01-01T00:00:00Z"}\n'
    assert "ahead of the clock" in inside.fails("send", "s", "--stime", "at", stdin=row)
    assert inside.ok("send", "s", "--stime", "at", "--max-ahead", "none", stdin=row) == "s: 1 tuple sent\n"


def test_status_without_a_file_looks_below_the_root(inside: Cli) -> None:
    inside.ok("create", "s", "--schema", SCHEMA)
    assert "no node writes below" in inside.ok("status")
    folder = holdfast.open(inside.root).open("s").folder
    ReportWriter(folder).publish(StreamReport("s", StreamState.STABLE, 1_700_000_000_000_000, False))
    (said,) = inside.objects("status")
    assert (said["stream"], said["up"], said["state"]) == ("s", True, "STABLE")
    assert "2023-11-14T22:13:20" in inside.ok("status")
    os.utime(report_path(folder), (1, 1))
    assert "down" in inside.ok("status")
    assert "--diagram needs the deployment's file" in inside.fails("status", "--diagram")


def test_idle_is_for_columns_that_say_when(inside: Cli) -> None:
    inside.ok("create", "s", "--schema", SCHEMA)
    assert "--idle goes with --stime" in inside.fails("send", "s", "--idle", "5s", code=2)


def test_send_says_of_a_topic_what_a_program_can_say(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.ok("create", "s", "--schema", SCHEMA)
    send = ("send", "s", "--kafka", "127.0.0.1:1")
    assert "--protobuf says what values are" in inside.fails(*send, "--protobuf", "a:B", "--value", "avro", code=2)
    assert "go with --kafka BROKER:PORT" in inside.fails("send", "s", "--protobuf", "a:B", code=2)
    assert "extra must be one of 'refuse', 'ignore'; got 'lift'" in inside.fails(*send, "--extra", "lift")
    nowhere = inside.run(*send, "--protobuf", "nowhere_pb2:Order").stderr
    assert "nowhere_pb2:Order of Protocol Buffers must be there for import" in nowhere
    told: list[KafkaSource] = []
    monkeypatch.setattr("holdfast.cli.send.feed_from", lambda session, name, source, until_read: told.append(source))
    inside.ok(*send)
    inside.ok(*send, "--uncommitted", "--extra", "ignore", "--protobuf", "shop_pb2:Order")
    assert [one.committed for one in told] == [True, False]
    assert told[1].values == ProtobufClass("shop_pb2:Order", Path(), extra=True)


def test_mend_boundary_says_what_it_would_do_and_does_it(inside: Cli) -> None:
    inside.ok("create", "s", "--schema", "n bigint, at timestamp", "--bucket", "1s")
    row = b'{"n": 1, "at": "9999-01-01T00:00:00Z"}\n'
    inside.ok("send", "s", "--stime", "at", "--max-ahead", "none", stdin=row)
    plan = inside.ok("mend-boundary", "s")
    assert "would: take the boundary back from 9999-01-01T00:00:00.000000Z to" in plan
    assert "would: give 1 tuple the new boundary as stime" in plan
    assert "nothing was changed; add --apply" in plan
    assert "done: give 1 tuple" in inside.ok("mend-boundary", "s", "--apply")
    assert inside.ok("send", "s", stdin=b'{"n": 2}\n') == "s: 1 tuple sent\n"
    assert [o["values"]["n"] for o in inside.objects("tail", "s")] == [1, 2]


def test_create_takes_every_option(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA, "--bucket", "5s", "--partitions", 4, "--partition-by", "source",
           "--retain-age", "7d", "--retain-size", "1GB", "--retain-acked", "--bound", "2GB", "--when-full",
           "drop_oldest")  # fmt: skip
    d = holdfast.open(cli.root).open("s").definition
    assert (d.bucket_us, d.partitions, d.partition_by) == (5_000_000, 4, "source")
    assert d.retention == holdfast.Retention(7 * 86_400_000_000, 10**9, True)
    assert d.bound == holdfast.Bound(2 * 10**9, "drop_oldest")
    cli.ok("create", "s", "--schema", SCHEMA, "--exist-ok")


def test_create_takes_when_to_persist(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA, "--persist", "on_demand", "--memory", "64MB")
    d = holdfast.open(cli.root).open("s").definition
    assert (d.persist, d.memory_bytes) == ("on_demand", 64_000_000)
    assert "persist on_demand, now in the log" in cli.ok("streams", "--json")
    assert "persist must be one of" in cli.fails("create", "t", "--schema", SCHEMA, "--persist", "sometimes")


def test_streams_shows_a_table_and_objects(filled: Cli) -> None:
    text = filled.ok("streams")
    assert "source string, bytes bigint" in text
    assert "ended" in text
    (fact,) = filled.objects("streams")
    assert (fact["tuples"], fact["first_bucket"], fact["last_bucket"], fact["writer"]) == (10, 1, 10, None)
    assert "no streams" in Cli(filled.root / "none").ok("streams")


def test_streams_shows_a_damaged_one_beside_the_others(filled: Cli) -> None:
    filled.ok("create", "t", "--schema", SCHEMA)
    (filled.root / "t" / "stream").write_bytes(b"rot")
    assert "damaged" in filled.ok("streams")
    assert len(filled.objects("streams")) == 2


def test_streams_watch_ends_with_the_signal(filled: Cli) -> None:
    with filled.started("streams", "--watch", "--json") as child:
        assert child.stdout is not None
        for _ in range(2):
            assert json.loads(child.stdout.readline())["name"] == "s"


def test_a_csv_file_is_sent_once(cli: Cli, tmp_path: Path) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    path = tmp_path / "rows.csv"
    path.write_text("source,bytes\na,1\nb,2\n")
    assert "2 tuples sent" in cli.ok("send", "s", path)
    assert "was sent before" in cli.ok("send", "s", path)
    assert "2 tuples sent" in cli.ok("send", "s", path, "--again")
    assert [r["values"]["bytes"] for r in cli.objects("tail", "s")] == [1, 2, 1, 2]


def test_poison_goes_to_the_dead_letters(cli: Cli, tmp_path: Path) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    rows = b'{"bytes": 1}\n{"bytes": "x"}\n{"bytes": 2}\n'
    (done,) = cli.objects("send", "s", "--dead-letters", tmp_path / "dead", stdin=rows)
    assert (done["tuples"], done["dead"]) == (2, 1)
    assert "line 2" in (tmp_path / "dead").read_text()


def test_a_file_is_followed_until_the_signal(cli: Cli, tmp_path: Path) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    path = tmp_path / "log"
    path.write_text('{"bytes": 1}\n')
    with cli.started("send", "s", path, "--follow") as sender, cli.started("tail", "s", "-f", "--json") as tail:
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["values"]["bytes"] == 1
        with path.open("a") as file:
            file.write('{"bytes": 2}\n')
        assert json.loads(tail.stdout.readline())["values"]["bytes"] == 2
        sender.send_signal(signal.SIGINT)
        out, _ = sender.communicate(timeout=20)
        assert out == "s: 2 tuples sent\n"
        assert sender.returncode == 0


def test_http_and_tcp_feed_the_same_stream(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    with cli.started("send", "s", "--http", 0, "--tcp", 0, "--json") as sender:
        assert sender.stdout is not None
        ports = {}
        for _ in range(2):
            said = json.loads(sender.stdout.readline())
            ports[said["listening"]] = said["port"]
        assert httpx.post(f"http://127.0.0.1:{ports['http']}/s", json={"bytes": 1}).json()["rows"] == 1
        with socket.create_connection(("127.0.0.1", ports["tcp"]), timeout=10) as sock, sock.makefile("rw") as file:
            file.write('{"bytes": 2}\n')
            file.flush()
            assert json.loads(file.readline())["ok"]
    assert sender.returncode == 0
    assert holdfast.open(cli.root).open("s").reader().rows == 2


def test_a_token_comes_from_a_file_and_one_that_others_can_see_is_warned_of(cli: Cli, tmp_path: Path) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    token = tmp_path / "t"
    token.touch(mode=0o600)
    token.write_text("x" * 32 + "\n")
    for shown, warned in ((("--token-file", token), False), (("--token", "x" * 32), True)):
        with cli.started("send", "s", "--tcp", 0, *shown, "--json") as sender:
            assert sender.stdout is not None
            port = json.loads(sender.stdout.readline())["port"]
            with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
                sock.sendall(b'{"token": "' + b"x" * 32 + b'"}\n')
                assert sock.recv(100) == b'{"ok":true}\n'
            sender.send_signal(signal.SIGINT)
            _, said = sender.communicate(timeout=60)
        assert ("can be seen by everybody" in said) is warned
    both = cli.fails("send", "s", "--tcp", 0, "--token-file", token, "--token", "x" * 32, code=2)
    assert "--token-file goes without --token" in " ".join(both.split())
    token.chmod(0o644)
    assert "must be its owner's alone" in cli.fails("send", "s", "--tcp", 0, "--token-file", token)


def test_generated_rows_resume(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    assert "300 tuples" in cli.ok("send", "s", "--generate", 0, "--count", 300)
    assert "200 tuples" in cli.ok("send", "s", "--generate", 0, "--count", 500)


def test_tail_shows_the_last_from_a_time_or_a_bucket(filled: Cli, inside: Cli) -> None:
    def at(*args: object) -> list[int]:
        return [r["values"]["at"] for r in inside.objects("tail", "s", *args)]

    assert at("-n", 3) == [8, 9, 10]
    assert at("-n", 0) == []
    assert at("--from", "beginning") == list(range(1, 11))
    assert at("--from", "1970-01-01T00:00:07") == [7, 8, 9, 10]
    assert at("--from", "bucket:9") == [9, 10]
    assert at("--from", "live") == []
    assert inside.objects("tail", "s", "--from", "live", "--boundaries") == []


def test_tail_follow_ends_with_the_stream(filled: Cli) -> None:
    assert len(filled.ok("tail", "s", "--from", "beginning", "--follow").splitlines()) == 10


def test_tail_shows_a_failure_and_its_end(filled: Cli) -> None:
    """003 figure 4-6"""
    filled.ok("create", "t", "--schema", "n bigint", "--bucket", "1s")
    stream = holdfast.open(filled.root).open("t")
    main = stream.producer(stime="n", stime_unit="s")
    main.send_many([{"n": 1}, {"n": 2}])
    main.advance(3_000_000)
    stream.create_branch(3_000_000)
    branch = holdfast.Producer(stream.definition, stream.branch_writer(), stime="n", stime_unit="s")
    branch.send({"n": 3})
    branch.advance(4_000_000)
    with filled.started("tail", "t", "--from", "beginning", "--tentative", "-f") as tail:
        assert tail.stdout is not None
        seen = [tail.stdout.readline().split()[1] for _ in range(3)]
        assert seen == ["INSERTION", "INSERTION", "TENTATIVE"]
        main.send({"n": 3})
        main.close()
        assert [tail.stdout.readline().split()[1] for _ in range(3)] == ["UNDO", "INSERTION", "REC_DONE"]
        branch.close(end=False)


def test_tail_says_what_tentative_tuples_are_worth(filled: Cli, inside: Cli) -> None:
    """003 §5.8.3"""
    filled.ok("create", "t", "--schema", "n bigint", "--bucket", "1s")
    stream = holdfast.open(filled.root).open("t")
    main = stream.producer(stime="n", stime_unit="s")
    main.send({"n": 1})
    main.advance(2_000_000)
    stream.create_branch(2_000_000)
    ReportWriter(stream.folder).publish(StreamReport("t", StreamState.UP_FAILURE, 0, True))
    note_worth(
        stream.folder,
        stream.definition,
        [Worth(2, 0.7, ("m1", "m2"), 0.6667, ("m3",)), Worth(3, 1.0, ("m1", "m2"), 1.0)],
    )
    branch = holdfast.Producer(stream.definition, stream.branch_writer(), stime="n", stime_unit="s")
    branch.send_many([{"n": 2}, {"n": 3}, {"n": 4}])
    branch.advance(5_000_000)
    shown = inside.ok("tail", "t", "--from", "beginning", "--tentative").splitlines()
    assert [line.partition("n=")[2] for line in shown] == [
        "1", "2  (worth 70%, at least 67%, without m3)", "3  (worth 100%: m1, m2)", "4",
    ]  # fmt: skip
    stable, worst, whole, unknown = inside.objects("tail", "t", "--from", "beginning", "--tentative")
    said = {"worth": 0.7, "least": 0.6667, "inputs": ["m1", "m2"], "missing": ["m3"]}
    assert {name: worst.get(name) for name in said} == said
    assert (whole["worth"], whole["missing"]) == (1.0, [])
    assert not said.keys() & (stable.keys() | unknown.keys()), "of these nothing is known, or nothing is missing"
    branch.close(end=False)
    main.close()


def test_tail_mentions_what_is_not_complete(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA, "--bucket", "1h")
    cli.ok("send", "s", stdin=b'{"bytes": 1}')
    assert "1 more are in buckets that are still open" in cli.run("tail", "s").stderr


def test_control_characters_do_not_reach_the_terminal(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    cli.ok("send", "s", stdin=json.dumps({"source": "\x1b]0;pwned\x07\n"}).encode())
    assert "\x1b" not in cli.ok("tail", "s")


def test_replay_prints_or_copies(filled: Cli) -> None:
    assert len(filled.ok("replay", "s", "--speed", "max").splitlines()) == 10
    begun = time.monotonic()
    text = filled.ok("replay", "s", "--from", "1970-01-01T00:00:02", "--to", "1970-01-01T00:00:05", "--speed", "5x")
    assert len(text.splitlines()) == 3
    assert time.monotonic() - begun >= 0.4
    filled.ok("create", "t", "--schema", "source string, bytes bigint, at bigint", "--bucket", "1s")
    assert "10 tuples of s" in filled.ok("replay", "s", "--speed", "max", "--into", "t", "--keep-time")
    want = [(r["stime"], r["values"]) for r in filled.objects("tail", "s")]
    assert [(r["stime"], r["values"]) for r in filled.objects("tail", "t")] == want


def test_verify_and_repair_find_mend_and_name(filled: Cli) -> None:
    assert "sound" in filled.ok("verify")
    assert "in order" in filled.ok("repair", "s")
    (index,) = (filled.root / "s" / "main").glob("*.idx")
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    done = filled.run("verify", "s")
    assert done.returncode == 1
    assert f"{index} at byte 0" in done.stdout
    assert "would:" in filled.run("repair", "s").stdout
    assert "done:" in filled.ok("repair", "s", "--apply")
    (segment,) = (filled.root / "s" / "main").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[800] ^= 1
    segment.write_bytes(bytes(data))
    damaged = [json.loads(line) for line in filled.run("verify", "s", "--json").stdout.splitlines()]
    assert damaged[0]["offset"] <= 800 < damaged[0]["offset"] + damaged[0]["length"]
    assert filled.run("repair", "s", "--apply").returncode == 1
    text = filled.ok("repair", "s", "--apply", "--drop-damaged")
    assert "lost: 10 tuples, ids 1 to 10, from 1970-01-01T00:00:01" in text
    filled.ok("verify", "s")


def test_retain_shows_forgets_and_removes(cli: Cli) -> None:
    stream = holdfast.open(cli.root).create("s", "word string", segment_bytes=4096)
    with stream.producer() as producer:
        for _ in range(10):
            producer.send({"word": "x" * 2000})
    with stream.subscribe(name="board", end=1) as reader:
        list(reader.poll())
        reader.ack()
    assert "board needs nothing before" in cli.ok("retain", "s", "--show")
    assert "subscriber board has acknowledged only" in cli.ok("retain", "s", "--size", "4KB")
    cli.fails("retain", "s", "--forget", "nobody")
    cli.ok("retain", "s", "--forget", "board")
    (done,) = cli.objects("retain", "s", "--size", "4KB")
    assert done["tuples"] > 0


def test_delete_asks_first(filled: Cli) -> None:
    assert "say --yes" in filled.fails("delete", "s")
    filled.ok("delete", "s", "--yes")
    assert filled.objects("streams") == []


def test_a_reader_that_goes_away_is_no_error(filled: Cli) -> None:
    filled.ok("create", "t", "--schema", SCHEMA)
    filled.ok("send", "t", "--generate", 0, "--count", 20_000)
    child = subprocess.Popen(_command(("tail", "t", "--from", "beginning")), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=filled.env)  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(20) == 0
    assert child.stderr.read() == b""
    child.stderr.close()


def test_ctrl_c_ends_quietly(cli: Cli) -> None:
    cli.ok("create", "s", "--schema", SCHEMA)
    cli.ok("send", "s", stdin=b'{"bytes": 1}')
    with cli.started("tail", "s", "-f") as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
        assert child.returncode == 130
        assert err == ""


def test_the_root_can_stand_before_or_after_the_verb(filled: Cli, tmp_path: Path) -> None:
    plain = Cli(tmp_path / "elsewhere")
    assert "ended" in plain.ok("--root", filled.root, "streams")
    assert "ended" in plain.ok("streams", "--root", filled.root)
    assert plain.ok("--version").startswith("holdfast ")


def test_it_starts_without_what_only_some_verbs_need(cli: Cli) -> None:
    heavy = ("pyspark", "pandas", "starlette", "aiohttp")
    code = f"import sys, holdfast.cli.main; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([*_command(())[:1], "-c", code], capture_output=True, env=cli.env, check=True)
    assert done.stdout == b"[]\n"
