"""What a subscriber got, and when: everything the picture of a failure is drawn from (003 §5.2, figures 5-4 and 5-6).

Rules:
1. A tuple is *new* if it carries new information (003 §4.1, NewOutput): its stime lies beyond everything that had been
   delivered when the last UNDO came. Corrections, and what a second failure delivers again, are not new.
2. The latency of a new tuple is its arrival minus its stime: the seeds' Proc_new, if sources stamp what they send.
3. N_tentative counts the tentative tuples that stand: those since the last UNDO (003, definition 8). The total is kept
   beside it.
4. A failure lasts from the first open "cut" mark to the mark that heals the last of them. What became tentative after
   its cut and before the next one belongs to it; it is corrected when REC_DONE has closed all of that.
5. Memory is bounded: arrivals are counted in cells (`arrivals.py`), and the last 4,096 controls, marks and corrections
   are kept. Counts, the largest latency and the times of correction are exact however long it runs.
6. `take`, `mark` and everything that reads may be called from several threads.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.console.arrivals import CELLS_MAX, SLOT_US, Arrivals, Cell, Held, Latency, held_of, latency_of
from holdfast.console.fingerprint import Fingerprint
from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType

VERSION = 1
#: Controls, marks and corrections that are kept; older ones are forgotten first.
EVENTS_MAX = 4_096
MarkKind = Literal["cut", "healed", "note"]
State = Literal["EMPTY", "STABLE", "TENTATIVE", "CORRECTING"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was done to the system."""

    wall_us: int
    text: str
    kind: MarkKind


@dataclass(frozen=True, slots=True)
class Control:
    """An UNDO or REC_DONE; `stime_us` is the newest stable stime at that moment."""

    wall_us: int
    type: TupleType
    stime_us: int | None


@dataclass(frozen=True, slots=True)
class Correction:
    """A stretch of tentative output and what became of it."""

    began_us: int
    tentative: int
    undone_us: int | None = None
    done_us: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure: when the first link was cut, when the last was healed, when all it did was corrected."""

    cut_us: int
    healed_us: int | None
    corrected_us: int | None
    tentative: int

    @property
    def to_correct_us(self) -> int | None:
        """From the healing to the last REC_DONE; None if nothing was tentative, healed or corrected."""
        if self.healed_us is None or self.corrected_us is None:
            return None
        return max(0, self.corrected_us - self.healed_us)


class Recording:
    """Grows with every batch taken.

    >>> recording = Recording()
    >>> recording.mark(0, "cut monitor3")
    >>> recording.failures()
    [Failure(cut_us=0, healed_us=None, corrected_us=None, tentative=0)]
    """

    def __init__(self, *, bucket_us: int = 1, slot_us: int = SLOT_US, cells_max: int = CELLS_MAX) -> None:
        """`bucket_us` is the stream's: a bucket of which anything was delivered tentatively is corrected as a whole."""
        if bucket_us < 1 or slot_us < 1 or cells_max < 1:
            raise UsageError(
                f"bucket_us, slot_us and cells_max must be positive; got {bucket_us}, {slot_us}, {cells_max}"
            )
        self.bucket_us = bucket_us
        self.began_us: int | None = None
        self.ended_us: int | None = None
        self.stable = self.tentative = self.standing = 0
        self.stable_digests: dict[str, str] = {}
        self._marks: deque[Mark] = deque(maxlen=EVENTS_MAX)
        self._controls: deque[Control] = deque(maxlen=EVENTS_MAX)
        self._corrections: deque[Correction] = deque(maxlen=EVENTS_MAX)
        self._open: Correction | None = None
        self._arrivals = Arrivals(slot_us, cells_max)
        self._era = 0
        self._newest_us: int | None = None
        self._newest_stable_us: int | None = None
        self._new_from_us: int | None = None
        self._fingerprint: Fingerprint | None = Fingerprint()
        self._lock = threading.RLock()

    # What happens.

    def take(self, batch: pa.RecordBatch, wall_us: int) -> None:
        """A batch that a subscriber yielded at `wall_us`."""
        types = batch.column("tuple_type").to_numpy(zero_copy_only=False)
        if not len(types):
            return
        with self._lock:
            if self._fingerprint is None:
                raise UsageError("a recording that was loaded cannot take more; start a new one")
            cuts = [0, *(np.flatnonzero(np.diff(types)) + 1).tolist(), len(types)]
            for start, end in pairwise(cuts):
                self._take_run(batch.slice(start, end - start), TupleType(int(types[start])), wall_us)

    def mark(self, wall_us: int, text: str, kind: MarkKind | None = None) -> None:
        """Something was done to the system; its first word says what unless `kind` does: "cut monitor3", "healed"."""
        if kind is None:
            word = text.split(maxsplit=1)[0].lower().rstrip(":,") if text.split() else ""
            kind = "cut" if word == "cut" else "healed" if word in ("healed", "heal") else "note"
        with self._lock:
            self._marks.append(Mark(wall_us, text, kind))
            self._see(wall_us)

    def _see(self, wall_us: int) -> None:
        self.began_us = wall_us if self.began_us is None else min(self.began_us, wall_us)
        self.ended_us = wall_us if self.ended_us is None else max(self.ended_us, wall_us)

    def _take_run(self, batch: pa.RecordBatch, kind: TupleType, wall_us: int) -> None:
        if kind is TupleType.BOUNDARY:
            return  # A promise, not a tuple; an idle stream shows nothing.
        self._see(wall_us)
        if kind is TupleType.UNDO:
            for _ in range(batch.num_rows):
                self._undo(wall_us)
        elif kind is TupleType.REC_DONE:
            for _ in range(batch.num_rows):
                self._rec_done(wall_us)
        else:
            stimes = batch.column("stime").cast(pa.int64()).to_numpy(zero_copy_only=False)
            self._arrivals.count(stimes, kind, self._era, wall_us, self._new_from_us)
            newest = int(stimes.max())
            self._newest_us = newest if self._newest_us is None else max(self._newest_us, newest)
            if kind is TupleType.TENTATIVE:
                self._take_tentative(len(stimes), wall_us)
            else:
                self.stable += len(stimes)
                known = self._newest_stable_us
                self._newest_stable_us = newest if known is None else max(known, newest)
                assert self._fingerprint is not None
                self._fingerprint.take(batch.drop_columns(["tuple_type"]))

    def _take_tentative(self, count: int, wall_us: int) -> None:
        self.tentative += count
        self.standing += count
        if self._open is None:
            self._open = Correction(wall_us, count)
        else:
            self._open = replace(self._open, tentative=self._open.tentative + count)

    def _undo(self, wall_us: int) -> None:
        self._controls.append(Control(wall_us, TupleType.UNDO, self._newest_stable_us))
        self._era += 1
        self.standing = 0
        if self._open is not None:
            self._open = replace(self._open, undone_us=wall_us)
        if self._newest_us is not None:
            self._new_from_us = (self._newest_us // self.bucket_us + 1) * self.bucket_us

    def _rec_done(self, wall_us: int) -> None:
        self._controls.append(Control(wall_us, TupleType.REC_DONE, self._newest_stable_us))
        if self._open is not None:
            self._corrections.append(replace(self._open, done_us=wall_us))
        # REC_DONE that a new failure forced (D4): what still stands belongs to that one.
        self._open = Correction(wall_us, self.standing) if self.standing else None

    # What there is to see.

    @property
    def marks(self) -> list[Mark]:
        """What was done, in order of time."""
        with self._lock:
            return sorted(self._marks, key=lambda mark: mark.wall_us)

    @property
    def controls(self) -> list[Control]:
        """UNDO and REC_DONE as they came."""
        with self._lock:
            return list(self._controls)

    @property
    def corrections(self) -> list[Correction]:
        """Stretches of tentative output as they came; the last one may still be open."""
        with self._lock:
            return [*self._corrections, *([self._open] if self._open is not None else [])]

    @property
    def state(self) -> State:
        """How the output stands, as the client sees it."""
        with self._lock:
            if self.standing:
                return "TENTATIVE"
            if self._open is not None:
                return "CORRECTING"
            return "STABLE" if self.stable else "EMPTY"

    def stable_fingerprint(self) -> tuple[int, dict[str, str]]:
        """How many stable rows came and the digest of each of their columns."""
        with self._lock:
            return self.stable, self.stable_digests if self._fingerprint is None else self._fingerprint.digests()

    @property
    def slot_us(self) -> int:
        """How exactly it is known where a cell lies."""
        return self._arrivals.slot_us

    def cells(self) -> list[Cell]:
        """All arrivals, in order of time."""
        with self._lock:
            return self._arrivals.cells()

    def failures(self) -> list[Failure]:
        """The failures that the marks tell of, with what they did to the output (rule 4)."""
        spans: list[list[int | None]] = []
        depth = 0
        for mark in self.marks:
            if mark.kind == "cut":
                if depth == 0:
                    spans.append([mark.wall_us, None])
                depth += 1
            elif mark.kind == "healed" and depth:
                depth -= 1
                if depth == 0:
                    spans[-1][1] = mark.wall_us
        corrections = self.corrections
        found = []
        for i, (cut, healed) in enumerate(spans):
            assert cut is not None
            until = spans[i + 1][0] if i + 1 < len(spans) else None
            own = [c for c in corrections if c.began_us >= cut and (until is None or c.began_us < until)]
            done = [c.done_us for c in own]
            corrected = None if not done or None in done else done[-1]
            found.append(Failure(cut, healed, corrected, sum(c.tentative for c in own)))
        return found

    def latency(self, since_us: int | None = None, until_us: int | None = None) -> Latency | None:
        """The latency of new tuples that arrived in [since, until), to one slot; None if there were none."""
        since = -(2**63) if since_us is None else since_us - self.slot_us
        until = 2**63 if until_us is None else until_us
        return latency_of(cell for cell in self.cells() if since < cell.wall_us < until)

    def held(self, at_us: int | None = None, width_us: int = 0) -> list[Held]:
        """What the client held at that time (now, if none is given), with about `width_us` of stime in each slot.

        A slot has whole buckets, because these come and go as one. How many tuples it should have is known once it was
        corrected; before that it is taken to be what a stable slot usually has.
        """
        with self._lock:
            at = at_us if at_us is not None else self.ended_us or 0
            era = self._era - sum(c.type is TupleType.UNDO for c in self._controls if c.wall_us > at)
            unit = max(self.bucket_us, self.slot_us)
            return held_of(self.cells(), at, era, max(1, -(-width_us // unit)) * unit)

    # Keeping it.

    def save(self, path: Path | str) -> None:
        """Write it to a file that `load` reads. It must not be in use elsewhere."""
        Path(path).write_bytes(self.to_json())

    def to_json(self) -> bytes:
        """The whole recording as one JSON object."""
        with self._lock:
            rows, digests = self.stable_fingerprint()
            return msgspec.json.encode(_Saved(
                holdfast_recording=VERSION, bucket_us=self.bucket_us, slot_us=self.slot_us, began_us=self.began_us,
                ended_us=self.ended_us, stable=rows, tentative=self.tentative, standing=self.standing, era=self._era,
                stable_digests=digests, marks=list(self._marks), controls=list(self._controls),
                corrections=list(self._corrections), open=self._open,
                cells=self._arrivals.rows(),
            ))  # fmt: skip

    @classmethod
    def load(cls, path: Path | str) -> Recording:
        """A recording that was saved: to look at, not to go on with."""
        return cls.from_json(Path(path).read_bytes(), str(path))

    @classmethod
    def from_json(cls, data: bytes, where: str = "the recording") -> Recording:
        """The opposite of `to_json`."""
        try:
            version = msgspec.json.decode(data, type=_Version).holdfast_recording
            if version != VERSION:
                raise UsageError(f"{where} must have version {VERSION}; got {version}; record it again")
            saved = msgspec.json.decode(data, type=_Saved)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{where} must be a recording that was saved; {error}") from None
        made = cls(bucket_us=saved.bucket_us, slot_us=saved.slot_us)
        made.began_us, made.ended_us, made._era = saved.began_us, saved.ended_us, saved.era
        made.stable, made.tentative, made.standing = saved.stable, saved.tentative, saved.standing
        made.stable_digests, made._open, made._fingerprint = saved.stable_digests, saved.open, None
        made._marks.extend(saved.marks)
        made._controls.extend(saved.controls)
        made._corrections.extend(saved.corrections)
        made._arrivals.restore(saved.cells)
        return made


class _Version(msgspec.Struct):
    holdfast_recording: int


class _Saved(msgspec.Struct, kw_only=True):
    holdfast_recording: int
    bucket_us: int
    slot_us: int
    began_us: int | None
    ended_us: int | None
    stable: int
    tentative: int
    standing: int
    era: int
    stable_digests: dict[str, str]
    marks: list[Mark]
    controls: list[Control]
    corrections: list[Correction]
    open: Correction | None
    cells: list[tuple[int, int, int, int, int, int, int]]
