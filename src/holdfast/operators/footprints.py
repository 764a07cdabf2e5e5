"""Footprints: window checkpoints as bodies of control frames, and their way back into a state (000 ch. 4, 001).

Rules:
1. At the end of a batch every window without a footprint gets one (Gopen), some slow ones get a new one (Gcheck), and
   windows that closed are named (R). A window that opened and closed within the batch leaves no trace: the unit in the
   log is atomic, so nobody could come between.
   A time window follows from its tuples alone, and they stand in the input's log. It gets its first footprint when it
   is slow; until then replay from where it opened makes it again.
2. All records of a batch have one position, the end of the batch's input; N is the number of open windows there.
3. Restoring takes, for each window, the newest record up to a position; those whose newest record is R are closed. What
   is left must be exactly N windows, those that have a footprint (C2), or nothing is restored.
4. Replay hands a window only the tuples behind its own position (C3). Results are not given again.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.model.errors import CorruptLog
from holdfast.operators.state import UNSAVED, Blocks, Step, has_footprint, in_order
from holdfast.protocol.cec.policy import Shot

#: 2: time windows without a footprint are made again from the input, which a reader of format 1 would not do.
#: 3: a body says among how many partitions the groups were dealt out; those before did it in another way as well.
_FORMAT, _FORMATS = 3, (1, 2, 3)


class Kernel(Protocol):
    by_group: bool
    keys: tuple[str, ...]

    def step(self, blocks: Blocks, rows: pl.DataFrame, since_us: int, until_us: int) -> Step: ...

    def pane_numbers(self, rows: pl.DataFrame) -> pl.Series: ...


@dataclass(frozen=True)
class Saved:
    """What a batch adds to the log."""

    body: bytes
    rows: int
    windows: int
    since_us: int
    opened: int
    checked: int
    closed: int


class Restored(NamedTuple):
    """Windows at different positions: `_p` of each, and the smallest of them (T)."""

    table: pl.DataFrame
    since_us: int
    frames: int
    bytes: int


def windows_of(blocks: Blocks, by_group: bool) -> int:
    """N: groups where a group is restored whole, else windows; of tuples that stand in the input, only those copied."""
    if any("_f" in b.columns for b in blocks.values()):
        return sum(int(b["_f"].sum()) for b in blocks.values())
    if not by_group:
        return sum(int(has_footprint(b).sum()) for b in blocks.values())
    return sum(int(b["_h"].n_unique()) if "_w" in b.columns else len(b) for b in blocks.values())


def save(
    step: Step, shot: Shot, position_us: int, operator: str, by_group: bool, partitions: int = 1
) -> tuple[dict[int, pl.DataFrame], Saved]:
    """The blocks with their footprints noted, and the body that makes the notes true once it is in the log."""
    chosen = _chosen(step.blocks, shot)
    after: dict[int, pl.DataFrame] = {}
    saved: list[pl.DataFrame] = []
    opened = checked = 0
    oldest = position_us
    for number, block in step.blocks.items():
        last = block["_s"].to_numpy()
        first = last == UNSAVED
        new = first | ~has_footprint(block)
        picked = first | chosen[number]
        if picked.any():
            if by_group and "_w" in block.columns:
                picked = np.isin(block["_h"].to_numpy(), block["_h"].to_numpy()[picked])
            opened += int((picked & new).sum())
            checked += int((picked & ~new).sum())
            block = block.with_columns(pl.Series("_s", np.where(picked, position_us, last)))
            if "_f" in block.columns:
                block = block.with_columns((pl.col("_f") | pl.Series(picked)).alias("_f"))
            mine = block if picked.all() else block.filter(pl.Series(picked))
            kinds = pl.Series("_g", np.where(new[picked], 1, 2).astype(np.int8))
            here = mine.drop("_s").with_columns(kinds)
            saved.append(here if "_w" in here.columns else here.with_columns(pl.lit(number, pl.Int64).alias("_w")))
        if len(block):
            oldest = min(oldest, int(block["_s"].to_numpy().min()))
        after[number] = block
    closed = pl.concat(step.closed) if step.closed else None
    windows = windows_of(after, by_group)
    left = _ipc([closed] if closed is not None else [])
    body = msgspec.msgpack.encode([_FORMAT, operator, position_us, windows, oldest, _ipc(saved), left, partitions])
    rows = opened + checked + (0 if closed is None else len(closed))
    return after, Saved(body, rows, windows, oldest, opened, checked, 0 if closed is None else len(closed))


def _chosen(blocks: Blocks, shot: Shot) -> dict[int, npt.NDArray[np.bool_]]:
    """The slow windows whose turn it is: at most so many, the least recently saved first. The rest waits its turn."""
    due: dict[int, npt.NDArray[np.bool_]] = {}
    for number, block in blocks.items():
        last = block["_s"].to_numpy()
        due[number] = (last <= shot.saved_until_us) & (last != UNSAVED)
        due[number] &= block["_o"].to_numpy() <= shot.opened_until_us
    total = sum(int(mask.sum()) for mask in due.values())
    if total <= shot.at_most:
        return due
    if shot.at_most <= 0:
        return {number: np.zeros(len(mask), bool) for number, mask in due.items()}
    saved = np.concatenate([blocks[number]["_s"].to_numpy()[mask] for number, mask in due.items()])
    taken = np.zeros(total, bool)
    taken[np.argpartition(saved, shot.at_most - 1)[: shot.at_most]] = True
    at = 0
    for mask in due.values():
        count = int(mask.sum())
        mask[mask] = taken[at : at + count]
        at += count
    return due


def _ipc(frames: list[pl.DataFrame]) -> bytes:
    if not frames:
        return b""
    sink = io.BytesIO()
    # Positions and counts repeat a lot: a seventh of the bytes, in half the time that plain ones take to copy.
    pl.concat(frames, how="diagonal").write_ipc_stream(sink, compression="lz4")
    return sink.getvalue()


def restore(bodies: Iterable[bytes], operator: str, position_us: int, by_group: bool) -> Restored:
    """The eventual checkpoint at `position_us`, from bodies that come newest first and reach back to T."""
    parts: list[pl.DataFrame] = []
    wanted, frames, size, since = -1, 0, 0, position_us
    for raw in bodies:
        try:
            number, name, position, windows, oldest, saved, closed, *_ = msgspec.msgpack.decode(raw)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptLog(f"a checkpoint of {operator} cannot be read ({error}); run `holdfast verify`") from error
        if number not in _FORMATS:
            raise CorruptLog(
                f"a checkpoint of {operator} has format {number}, this Holdfast reads up to {_FORMAT}; upgrade it"
            )
        if name != operator:
            continue
        if wanted < 0:
            if position != position_us:
                raise CorruptLog(
                    f"{operator}: the log has checkpoints up to {position}, needed are those at {position_us}"
                )
            wanted, since = windows, oldest
        for data, order in ((closed, 0), (saved, 1)):
            if data:
                frame = pl.read_ipc_stream(io.BytesIO(data))
                parts.append(
                    frame.with_columns(pl.lit(position, pl.Int64).alias("_p"), pl.lit(order, pl.Int8).alias("_c"))
                )
        frames, size = frames + 1, size + len(raw)
    if wanted < 0:
        raise CorruptLog(f"{operator}: the log has no checkpoint at {position_us}; nothing was restored")
    table = _newest(parts, by_group)
    found = 0 if not len(table) else int(table["_h"].n_unique()) if by_group else len(table)
    if found != wanted:
        raise CorruptLog(f"{operator}: {wanted} windows were open, the log has {found} of them; nothing was restored")
    return Restored(table, since, frames, size)


def partitions_of(raw: bytes) -> int | None:
    """Among how many partitions the groups were dealt out that a body is of; None if it does not say so."""
    said = msgspec.msgpack.decode(raw)
    return int(said[7]) if len(said) > 7 else None


def together(parts: list[Restored], mine: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]) -> Restored:
    """The windows of some groups, out of what was restored of several partitions.

    T is the smallest of theirs. A window that closed before the T of its own partition is opened again by replay from
    there, and closes again: its end lies before the position.
    """
    tables = [part.table.filter(pl.Series(mine(part.table["_h"].to_numpy()))) for part in parts]
    table = pl.concat(tables, how="diagonal_relaxed")
    return Restored(table, min(p.since_us for p in parts), sum(p.frames for p in parts), sum(p.bytes for p in parts))


def _newest(parts: list[pl.DataFrame], by_group: bool) -> pl.DataFrame:
    """Rule 3, over parts that come newest first."""
    if not parts:
        return pl.DataFrame(schema={"_h": pl.Int64, "_w": pl.Int64, "_p": pl.Int64})
    every = pl.concat(parts, how="diagonal")
    if by_group:
        newest = every.group_by("_h").agg(pl.col("_p").max())
        every = every.join(newest, on=["_h", "_p"], how="semi", maintain_order="left")
    else:
        gone = every.filter((pl.col("_c") == 0) & pl.col("_h").is_null()).select("_w").unique()
        every = every.join(gone, on="_w", how="anti", maintain_order="left")  # A pane that closed never opens again.
        every = every.unique(["_h", "_w"], keep="first", maintain_order=True)
    return every.filter(pl.col("_c") == 1).drop("_c")


def blocks_of(table: pl.DataFrame, keeps_panes: bool) -> dict[int, pl.DataFrame]:
    """A restored table as blocks, each window saved at its own position."""
    if not len(table):
        return {}
    table = table.rename({"_p": "_s"}).drop("_g", strict=False)
    first, last = ["_h"], ["_o", "_s"]
    table = table.select(*first, *(c for c in table.columns if c not in (*first, *last)), *last)
    if keeps_panes or "_f" in table.columns:
        return {0: in_order(table)}
    panes = table.partition_by("_w", as_dict=True, include_key=False)
    return {int(number): in_order(block) for (number,), block in panes.items()}


def replay(kernel: Kernel, restored: Restored, blocks: Blocks, rows: pl.DataFrame, position_us: int) -> Blocks:
    """Bring every window from its own position to `position_us`. `rows` lie in [T, position), in processing order."""
    if getattr(kernel, "implicit", False):
        # Copied tuples that came before T; replay meets all later ones again, copied or not.
        early = {n: b.filter(pl.col("_t") < restored.since_us) for n, b in blocks.items()}
        return _noted(kernel.step(early, rows, restored.since_us, position_us).blocks, restored)
    by = ["_h"] if kernel.by_group else ["_h", "_w"]
    if not kernel.by_group:
        rows = rows.with_columns(kernel.pane_numbers(rows))
    marks = restored.table.select(*by, "_p").unique(by)
    behind = pl.col("_t") >= pl.col("_p")
    if not kernel.by_group:
        behind = behind.fill_null(True)  # A window without a footprint opened after T, or has closed again since.
    mine = rows.join(marks, on=by, how="left", maintain_order="left").filter(behind).drop("_p")
    step = kernel.step(blocks, mine if kernel.by_group else mine.drop("_w"), restored.since_us, position_us)
    return step.blocks


def _noted(blocks: Blocks, restored: Restored) -> Blocks:
    """Tuples that replay has met again and that the log has copies of, too: their R must not be forgotten."""
    if not len(restored.table):
        return blocks
    copies = restored.table.select("_h", "_w", "_p")
    after = {}
    for number, block in blocks.items():
        at = block.select("_h", "_w").join(copies, on=["_h", "_w"], how="left", maintain_order="left")["_p"]
        after[number] = block.with_columns(
            (pl.col("_f") | at.is_not_null()).alias("_f"), at.fill_null(block["_s"]).alias("_s")
        )
    return after
