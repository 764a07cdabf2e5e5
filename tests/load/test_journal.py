"""The journal of a participant through crashes: what was acknowledged comes back, whole and in order (B8, L1, L3)."""

from __future__ import annotations

import contextlib
import os
import random
import struct
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import holdfast.load.journal as journals
from holdfast.load.journal import Journal, encode_records
from holdfast.model.errors import CorruptLog, StorageError
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Levels
from holdfast.protocol.load.leases import LeaseState, Role
from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.records import (
    Asked,
    Charged,
    OfferClosed,
    OfferMade,
    Opened,
    Placed,
    Record,
    ReservationClosed,
    Reserved,
    Stepped,
    Unwanted,
)
from holdfast.protocol.load.usage import Task, Usage
from holdfast.stream.disk import Disk
from holdfast.stream.frame import crc32c
from tests.faults.power import PowerCut, PowerDisk

#: Raise it for a long run.
CUTS = int(os.environ.get("HOLDFAST_MOVES", "1")) * 60
TASK = Task("counts", Usage(0.25, 0.5, 0.125), "counts", 1.5)
ENTRY = Entry("anna:1#0", 0, "c", "anna", "ben", 0.1, 0.25, 25_000)
EVERY: tuple[Record, ...] = (
    OfferMade(1, "anna:1", "c", 0.1, (TASK,), 10, 20),
    OfferClosed("anna:1"),
    Reserved("anna:1", "c", 0.1, True, (TASK,), 20),
    ReservationClosed("anna:1"),
    Opened("anna:1#0", "anna:1", Role.BUYER, "c", TASK, 0.1, LeaseState.COMMITTING, 11),
    Charged(ENTRY),
    Stepped("anna:1#0", LeaseState.MOVING, 12),
    Stepped("anna:1#0", LeaseState.RUNNING, 13),
    Asked("anna:1#0", 1, 0.25),
    Unwanted("anna:1#0"),
    Placed("counts", "ben"),
)


def test_every_record_comes_back_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for record in EVERY:
        journal.append((record,))
    journal.close()
    again = Journal(tmp_path / "journal")
    assert tuple(again.records) == EVERY
    again.close()


def test_a_core_that_starts_from_a_journal_is_the_one_that_stopped(tmp_path: Path) -> None:
    contract = Contract("c", "anna", "ben", 0.1, 0.1)
    plan = ParticipantPlan("anna", Levels(), (contract,))
    journal = Journal(tmp_path / "journal")
    journal.append(EVERY)
    journal.close()
    journal = Journal(tmp_path / "journal")
    core = ParticipantCore(plan, journal.records, 20)
    journal.shorten(core.snapshot())
    journal.append((Stepped("anna:1#0", LeaseState.RETURNING, 30),))
    journal.close()
    again = ParticipantCore(plan, Journal(tmp_path / "journal").records, 30)
    lease = again.book.leases["anna:1#0"]
    assert (lease.state, lease.unwanted, lease.asked) == (LeaseState.RETURNING, True, 1)
    assert again.ledger.balance("ben") == core.ledger.balance("ben") == -25_000
    assert again.book.placed == {"counts": "ben"}


def test_a_torn_end_is_cut_and_what_was_there_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append(EVERY[:2])
    journal.close()
    whole = path.read_bytes()
    for length in range(1, len(encode_records(EVERY[2:5]))):
        path.write_bytes(whole + encode_records(EVERY[2:5])[:length])
        torn = Journal(path)
        assert tuple(torn.records) == EVERY[:2]
        torn.append(EVERY[4:5])
        torn.close()
        after = Journal(path)
        assert tuple(after.records) == (*EVERY[:2], EVERY[4])
        after.close()


def test_damage_before_the_end_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for record in EVERY:
        journal.append((record,))
    journal.close()
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog, match="a record that was acknowledged cannot be read"):
        Journal(path)
    assert path.read_bytes() == bytes(data)


def test_a_flipped_bit_or_a_zero_in_any_header_but_the_last_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    starts = []
    for record in EVERY:
        starts.append(path.stat().st_size)
        journal.append((record,))
    journal.close()
    whole = path.read_bytes()
    for start in starts[:-1:4]:
        for damage in ([(start + bit // 8, 1 << bit % 8) for bit in range(128)], [(start, None)]):
            for at, flip in damage:
                data = bytearray(whole)
                data[at : at + (16 if flip is None else 1)] = bytes(16) if flip is None else [data[at] ^ flip]
                path.write_bytes(data)
                with pytest.raises(CorruptLog, match="a record that was acknowledged cannot be read"):
                    Journal(path)
                assert path.read_bytes() == bytes(data)


def test_a_snapshot_of_any_length_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_FRAME_BYTES_MAX", 1 << 20)  # As for 64 MB, in the time of a test.
    ledger = [Charged(replace(ENTRY, period=k)) for k in range(20_000)]
    journal = Journal(tmp_path / "journal")
    journal.shorten(ledger)
    journal.append((Placed("counts", "ben"),))
    journal.close()
    again = Journal(tmp_path / "journal")
    assert again.records == [*ledger, Placed("counts", "ben")]
    with pytest.raises(StorageError, match="records of one signal must have"):
        again.append(ledger)
    again.close()


def test_a_long_ledger_is_not_written_again_with_every_entry(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    kept: list[Record] = [Charged(replace(ENTRY, period=k)) for k in range(8_000)]
    journal.shorten(kept)
    shortened = 0
    for k in range(8_000, 8_100):
        kept.append(Charged(replace(ENTRY, period=k)))
        journal.append(kept[-1:])
        if journal.long:
            journal.shorten(kept)
            shortened += 1
    journal.close()
    assert shortened <= 1


def test_a_journal_whose_replacement_failed_promises_nothing_more(tmp_path: Path) -> None:
    class Full(Disk):
        def sync_dir(self, path: Path) -> None:
            raise StorageError("no space")

    journal = Journal(tmp_path / "journal")
    journal._disk = Full()
    with pytest.raises(StorageError, match="no space"):
        journal.shorten(EVERY[:1])
    with pytest.raises(StorageError, match="has failed before"):
        journal.append(EVERY[1:2])


def _version_1(*signals: tuple[Record, ...]) -> bytes:
    data = b"HOLDBOOK\x01" + bytes(7)
    for signal in signals:
        body = msgspec.json.encode([[type(record).__name__, record] for record in signal])
        body += b" " * (-len(body) % 8)
        data += struct.pack("<II", len(body), crc32c(body)) + body
    return data


def test_a_journal_of_the_first_version_is_read_and_goes_on_as_one_of_the_second(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(_version_1(EVERY[:4], EVERY[4:5]) + b"\x40\x00\x00\x00torn")
    journal = Journal(path)
    assert tuple(journal.records) == EVERY[:5]
    journal.append(EVERY[5:])
    journal.close()
    again = Journal(path)
    assert tuple(again.records) == EVERY
    again.close()
    assert path.read_bytes().startswith(b"HOLDBOOK\x02")


def test_damage_in_a_journal_of_the_first_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for at, value in ((16, 0), (19, 0x80), (40, 1)):
        data = bytearray(_version_1(*((record,) for record in EVERY)))
        data[at : at + (4 if value == 0 else 1)] = bytes(4) if value == 0 else [data[at] ^ value]
        path.write_bytes(data)
        with pytest.raises(CorruptLog, match="a record that was acknowledged cannot be read"):
            Journal(path)
        assert path.read_bytes() == bytes(data)


def test_power_cuts_at_any_step_lose_nothing_that_was_acknowledged_and_keep_signals_whole(tmp_path: Path) -> None:
    chance = random.Random(1)
    root, acked, number = tmp_path / "0", [], 0
    root.mkdir()
    for life in range(1, CUTS + 1):
        disk = PowerDisk(root, chance.randint(1, 24))
        perhaps: list[Record] = []
        journal = None
        with contextlib.suppress(PowerCut):
            journal = Journal(root / "load" / "journal", disk)
            assert _numbers(journal.records) in (_numbers(acked), _numbers([*acked, *perhaps]))
            for _ in range(chance.randint(1, 6)):
                if chance.random() < 0.2:
                    perhaps = []
                    journal.shorten(acked)
                else:
                    perhaps = [Placed(f"t{number + k}", "ben") for k in range(chance.randint(1, 40))]
                    journal.append(perhaps)
                    acked += perhaps
                    number += len(perhaps)
                    perhaps = []
        disk.dead = True
        if journal is not None:
            journal.close()
        after = tmp_path / str(life)
        disk.restart(after, chance)
        root = after
        if (root / "load" / "journal").exists():
            found = Journal(root / "load" / "journal")
            whole = (_numbers(acked), _numbers([*acked, *perhaps]))
            assert _numbers(found.records) in whole, "all of a signal, or none"
            acked = list(found.records)
            number = len(acked)
            found.close()
        else:
            assert not acked


def _numbers(records: list[Record]) -> list[str]:
    return [record.task_id for record in records if isinstance(record, Placed)]
