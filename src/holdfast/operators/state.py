"""The state of an operator in one partition: open windows as columns.

Rules:
1. State is a value: a step makes a new one and leaves the old as it was, so a version can be kept, forked or thrown
   away at no cost.
2. It consists of blocks. A block holds one pane of a time window for all groups, or all groups of a count window; it is
   sorted by `_h`, the number of the group, so that it is searched and merged without a hash table.
3. `_h` is the key itself if that is one whole number, else a hash of the key's columns. Two keys with one hash are
   found out and refused, never mixed.
4. `_o` is the position at which a window opened: the end of the batch that brought its first tuple. `_s` is the
   position from which it can be brought up to date: that of its last footprint in the log (`UNSAVED`: none); before it
   has one, for a window that follows from its tuples alone, the beginning of that batch, where it did not exist yet.
   So a window has a footprint exactly if `_s` is not before `_o`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.model.errors import StorageError
from holdfast.model.time import BEGINNING_US

Ints = npt.NDArray[np.int64]
Blocks = Mapping[int, pl.DataFrame]
#: Of a window that has no footprint yet.
UNSAVED = BEGINNING_US
#: Block of windows that are not bound to a time.
ONLY = 0


class Step(NamedTuple):
    """What one batch did."""

    blocks: Blocks
    results: pl.DataFrame | None
    """`stime` (µs), `_w` (start of a time window), key columns, functions; None if no window closed."""
    closed: list[pl.DataFrame]
    """`_h` and `_w` of windows with a footprint that are not open any more; without `_h`, all of that `_w`."""
    late: int = 0


def in_order(block: pl.DataFrame) -> pl.DataFrame:
    """Rule 2, of a block that was put together: tuples in the order they came, windows by group."""
    if "_f" in block.columns:
        return block.sort("_q", maintain_order=True)
    return block.sort("_h", "_w") if "_w" in block.columns else block.sort("_h")


def has_footprint(block: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Rule 4."""
    found: npt.NDArray[np.bool_] = block["_s"].to_numpy() >= block["_o"].to_numpy()
    return found


def beginning(rows: pl.DataFrame, since_us: int) -> int:
    """A position from which reading again meets all the rows of a batch."""
    if since_us == BEGINNING_US and len(rows):
        return int(rows["_t"].min())  # type: ignore[arg-type]
    return since_us


def find(block: pl.DataFrame | None, numbers: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Where each of the sorted group numbers stands in the block, and whether it does."""
    if block is None or not len(block):
        return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), bool)
    known = block["_h"].to_numpy()
    if len(known) == len(numbers) and bool((known == numbers).all()):  # As from batch to batch of a busy stream.
        return np.arange(len(numbers)), np.ones(len(numbers), bool)
    at = np.searchsorted(known, numbers)
    at[at == len(known)] = 0
    return at, known[at] == numbers


def at_places(block: pl.DataFrame, at: Ints, has: npt.NDArray[np.bool_]) -> pl.DataFrame:
    """The block's row for each of the groups that `find` was asked for; any row where there is none."""
    return block if len(at) == len(block) and has.all() else block[at]


def check_keys(keys: Sequence[str], ours: pl.DataFrame, theirs: pl.DataFrame) -> None:
    """Rule 3: rows with one group number have one key."""
    for key in keys:
        if key != "_h" and not ours[key].eq_missing(theirs[key]).all():
            raise _same_hash()


def check_groups(keys: Sequence[str], rows: pl.DataFrame) -> None:
    """The same for rows in any order."""
    if tuple(keys) != ("_h",):
        groups = rows.select("_h", *(k for k in keys if k != "_h")).unique()
        if len(groups) != groups["_h"].n_unique():
            raise _same_hash()


def _same_hash() -> StorageError:
    return StorageError(
        "two groups have the same 64-bit hash; give the operator another salt (salt=1, 2, …), a new checkpoint folder "
        "and a new output"
    )


def upsert(block: pl.DataFrame | None, entries: pl.DataFrame, at: Ints, has: npt.NDArray[np.bool_]) -> pl.DataFrame:
    """The block with the entries in place of, or between, its own. `at` and `has` come from `find`."""
    if block is None or not len(block):
        return entries
    if has.all() and len(entries) == len(block):
        return entries
    index = np.arange(len(block))
    index[at[has]] = len(block) + np.flatnonzero(has)
    both = pl.concat([block, entries.select(block.columns)])
    if not has.all():
        new = len(block) + np.flatnonzero(~has)
        numbers = both["_h"].to_numpy()
        index = np.concatenate([index, new])
        index = index[np.argsort(numbers[index], kind="stable")]
    return both[index]


def without(block: pl.DataFrame, at: Ints) -> pl.DataFrame:
    """The block without the rows at these places."""
    keep = np.ones(len(block), bool)
    keep[at] = False
    return block.filter(pl.Series(keep))


def footprints_of(block: pl.DataFrame, window: int) -> pl.DataFrame:
    """Those of a block that is given up which the log knows of."""
    known = block.filter(pl.col("_s") != UNSAVED)
    return known.select("_h", pl.lit(window, pl.Int64).alias("_w"), "_o")


def whole_pane(block: pl.DataFrame, window: int) -> pl.DataFrame:
    """All windows of a pane close together: one R, without a group's number, stands for all that the log knows of."""
    known = bool(has_footprint(block).any())
    shape = {"_h": pl.Int64, "_w": pl.Int64, "_o": pl.Int64}
    return pl.DataFrame({"_h": [None], "_w": [window], "_o": [None]} if known else None, schema=shape)


def segment_starts(numbers: Ints) -> Ints:
    """Where a new number begins among sorted ones."""
    if not len(numbers):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])


def arrived(rows: pl.DataFrame, kept: pl.DataFrame | None, since_us: int) -> tuple[pl.DataFrame, int]:
    """Tuples that are state themselves, numbered after those that are there, and the first new number.

    Their footprint is the input: `_s` is a position from which reading again meets them.
    """
    base = 0 if kept is None or not len(kept) else int(kept["_q"].max()) + 1  # type: ignore[operator]
    position = beginning(rows, since_us)
    marks = [pl.lit(position, pl.Int64).alias(name) for name in ("_s", "_o")]
    numbers = pl.Series("_q", np.arange(base, base + len(rows)), dtype=pl.Int64)
    return rows.with_columns(numbers, *marks, pl.lit(False).alias("_f")), base
