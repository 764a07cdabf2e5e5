"""The index of the log store: for each key, where its newest record stands.

Two parts, because each is good at one thing:

1. The *base* is a set of columns sorted by digest, immutable, the form in which an index is flushed, loaded and
   rebuilt: a million keys in some tens of milliseconds, since no object is made for any of them.
2. The *overlay* is a dictionary of what came since. Now and then it is frozen, merged into a new base and flushed; its
   tables (see `log_unit`) are kept beside it, so the merge is by column as well.

Of several records of a key the last in the log is the newest. Versions need not be compared again: a record is written
only after it was found to be the newest, and copies only while their original is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.stores.log_unit import GONE, ROW, ROW_SIZE, Place, place_of

#: The base's columns in the order of the flushed file.
COLUMNS = (("h1", "<u8"), ("h2", "<u8"), ("version", "<i8"), ("segment", "<u4"), ("at", "<u8"), ("key_len", "<u2"),
           ("value_len", "<u4"), ("crc", "<u4"))  # fmt: skip
ENTRY_BYTES = sum(np.dtype(kind).itemsize for _, kind in COLUMNS)

Column = npt.NDArray[np.generic]


class Chunk(NamedTuple):
    """The table of one unit and where its body begins."""

    segment: int
    body_at: int
    rows: npt.NDArray[np.void]


class Base:
    """Sorted columns. Never changed once made."""

    def __init__(self, columns: dict[str, npt.NDArray[np.generic]] | None = None) -> None:
        self.columns = columns or {name: np.empty(0, kind) for name, kind in COLUMNS}
        self._h1, self._h2 = self.columns["h1"], self.columns["h2"]

    def __len__(self) -> int:
        return len(self._h1)

    def find_many(self, digests: Sequence[bytes]) -> list[Place | None]:
        if not len(self):
            return [None] * len(digests)
        wanted = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        rows, found = self._rows(wanted[:, 0], wanted[:, 1])
        c = self.columns
        fields = [c[name][rows].tolist() for name in Place._fields]
        places: list[Place | None] = list(map(place_of, zip(*fields, strict=True)))
        for i in np.flatnonzero(~found).tolist():
            places[i] = None
        return places

    def _rows(self, h1: Column, h2: Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The row of each digest, and whether there is one."""
        rows = np.minimum(np.searchsorted(self._h1, h1), len(self) - 1)
        half = self._h1[rows] == h1
        found = half & (self._h2[rows] == h2)
        for i in np.flatnonzero(half & ~found):  # Another key with the same first half stands in front of it.
            row = int(rows[i])
            while row < len(self) and self._h1[row] == h1[i] and not found[i]:
                rows[i], found[i] = row, self._h2[row] == h2[i]
                row += 1
        return rows, found

    def merged(self, chunks: Sequence[Chunk]) -> Base:
        """This base with the records of `chunks`, given in the order of the log, on top."""
        if not chunks:
            return self
        new = _columns(chunks)
        keep = newest(new["h1"], new["h2"])
        new = {name: column[keep] for name, column in new.items()}
        if not len(self):
            return Base(new)
        rows, found = self._rows(new["h1"], new["h2"])
        replaced, added = rows[found], ~found
        merged: dict[str, Column] = {}
        places = np.searchsorted(self._h1, new["h1"][added]) if added.any() else None
        for name, _ in COLUMNS:
            column = self.columns[name]
            if name not in ("h1", "h2", "key_len"):  # Those say the same in every record of a key.
                column = column.copy()
                column[replaced] = new[name][found]
            merged[name] = column if places is None else np.insert(column, places, new[name][added])
        return Base(merged)

    def segments(self) -> list[int]:
        """Those with a current record."""
        return np.flatnonzero(np.bincount(self.columns["segment"])).tolist() if len(self) else []  # type: ignore[no-any-return, call-overload]

    def live(self) -> dict[int, tuple[int, int]]:
        """Per segment: how many records are current, and their bytes."""
        segment = self.columns["segment"].astype(np.intp)  # Once: `bincount` would do so each time.
        lengths = self.columns["value_len"].astype(np.float64)
        lengths[self.columns["value_len"] == GONE] = 0
        lengths += self.columns["key_len"].astype(np.float64)
        counts = np.bincount(segment)
        sizes = np.bincount(segment, weights=lengths) + counts * ROW_SIZE
        return {s: (int(counts[s]), int(sizes[s])) for s in np.flatnonzero(counts).tolist()}


def newest(h1: Column, h2: Column) -> npt.NDArray[np.int64]:
    """Rows of the last record of each digest, sorted by digest."""
    order = np.argsort(h1)
    sorted_h1 = h1[order]
    first = np.empty(len(order), bool)
    first[:1] = True
    np.not_equal(sorted_h1[1:], sorted_h1[:-1], out=first[1:])
    if not first.all():
        sorted_h2 = h2[order]
        if bool(np.any(~first[1:] & (sorted_h2[1:] != sorted_h2[:-1]))):
            # Different keys share the first half of their digests: sort by both.
            order = np.lexsort((h2, h1))
            sorted_h1, sorted_h2 = h1[order], h2[order]
            first[1:] = (sorted_h1[1:] != sorted_h1[:-1]) | (sorted_h2[1:] != sorted_h2[:-1])
        return np.maximum.reduceat(order, np.flatnonzero(first))
    return order


def _columns(chunks: Sequence[Chunk]) -> dict[str, Column]:
    # As bytes: numpy copies structured rows field by field.
    rows = np.concatenate([chunk.rows.view(np.uint8) for chunk in chunks]).view(ROW)
    counts = np.fromiter((len(chunk.rows) for chunk in chunks), np.int64, len(chunks))
    body_at = np.repeat(np.fromiter((chunk.body_at for chunk in chunks), np.uint64, len(chunks)), counts)
    found: dict[str, Column] = {name: np.ascontiguousarray(rows[name]) for name, _ in COLUMNS if name in ROW.names}  # type: ignore[operator]
    found["segment"] = np.repeat(np.fromiter((chunk.segment for chunk in chunks), np.uint32, len(chunks)), counts)
    found["at"] = body_at + rows["at"]
    return {name: found[name] for name, _ in COLUMNS}


class View(NamedTuple):
    """What a lookup consults, newest first. Replaced as a whole, so that readers need no lock."""

    overlay: dict[bytes, Place]
    frozen: dict[bytes, Place]
    base: Base


class Index:
    """Base, overlay, and what is being merged. Changes come from one thread at a time; lookups from any."""

    def __init__(self, base: Base) -> None:
        self._view = View({}, {}, base)
        self._chunks: list[Chunk] = []
        self._freezing: list[Chunk] = []

    @property
    def overlay_len(self) -> int:
        return len(self._view.overlay)

    @property
    def units(self) -> int:
        return len(self._chunks)

    @property
    def base(self) -> Base:
        return self._view.base

    def find(self, digest: bytes) -> Place | None:
        view = self._view
        return view.overlay.get(digest) or view.frozen.get(digest) or view.base.find_many([digest])[0]

    def find_many(self, digests: Sequence[bytes]) -> list[Place | None]:
        view = self._view
        found = list(map(view.overlay.get, digests))
        if view.frozen:
            found = [place or view.frozen.get(d) for d, place in zip(digests, found, strict=True)]
        if len(view.base) and (missing := [i for i, place in enumerate(found) if place is None]):
            for i, place in zip(missing, view.base.find_many([digests[i] for i in missing]), strict=True):
                found[i] = place
        return found

    def add(self, chunk: Chunk, digests: Sequence[bytes], places: Sequence[Place]) -> None:
        self._chunks.append(chunk)
        self._view.overlay.update(zip(digests, places, strict=True))

    def freeze(self) -> None:
        """Set the overlay aside for `merge`; what comes meanwhile goes to a new one."""
        if not self._freezing:  # A merge that failed is tried again with what it had and what came since.
            self._freezing, self._chunks = self._chunks, []
            self._view = View({}, self._view.overlay, self._view.base)
        else:
            self._freezing, self._chunks = self._freezing + self._chunks, []
            self._view = View({}, self._view.frozen | self._view.overlay, self._view.base)

    def merge(self) -> Base:
        """The base that includes what is frozen. Takes long; holds no lock."""
        return self._view.base.merged(self._freezing)

    def thaw(self, base: Base) -> None:
        self._view = View(self._view.overlay, {}, base)
        self._freezing = []
