"""The three inputs: which rows there are, which file brings them when, and the feeder that writes the files.

Rules:
1. Everything but the moment at which a file appears is fixed by the plan: all contenders read the same bytes.
2. An input is a folder. A file of JSON lines appears in it every `CHUNK_MS`, whole (it is renamed into place), with the
   rows of that time in the order of their time: a source that every contender can follow.
3. The silent input loses nothing: what it held back comes in one file, in order, when it is back.
4. Nothing but the standard library: the contenders import this in environments of their own.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

INPUTS = ("a", "b", "c")
SILENT = "c"
KEYS = ("k0", "k1", "k2", "k3")
#: 2026-01-01: event time is the plan's own, so that no byte depends on when somebody runs this.
EPOCH_MS = 1_767_225_600_000
WINDOW_MS = 2_000
#: So often each input has `ROWS_PER_TICK` new rows.
TICK_MS, ROWS_PER_TICK = 100, 4
CHUNK_MS = 500
#: The disorder that every contender is told to expect between rows: twice what files of half a second bring.
DISORDER_MS = 1_000

Key = tuple[int, str]
"""A row of the result: the start of its window in event time, and its key."""


class Plan(NamedTuple):
    """Seconds since the feeder began."""

    judged_from_s: int = 30  # Before that everybody may start, compile and warm up.
    silent_from_s: int = 40
    silent_until_s: int = 60
    judged_until_s: int = 76
    fed_until_s: int = 104  # Later rows close the last windows that are judged, also for who waits for 25 s.
    stopped_at_s: int = 108


class File(NamedTuple):
    at_ms: int
    input: str
    name: str
    rows: tuple[tuple[int, str], ...]
    """Event time and key."""


def files(plan: Plan) -> list[File]:
    """What the feeder writes, in that order."""
    found = [file for name in INPUTS for file in _files_of(name, plan)]
    return sorted(found, key=lambda file: (file.at_ms, file.input))


def _files_of(name: str, plan: Plan) -> Iterator[File]:
    chance = random.Random(f"compare {name}")
    held: list[tuple[int, str]] = []
    for number, begin_ms in enumerate(range(0, plan.fed_until_s * 1000, CHUNK_MS)):
        at_ms = begin_ms + CHUNK_MS
        held += [
            (EPOCH_MS + tick, chance.choice(KEYS))
            for tick in range(begin_ms, at_ms, TICK_MS)
            for _ in range(ROWS_PER_TICK)
        ]
        if name == SILENT and plan.silent_from_s * 1000 < at_ms < plan.silent_until_s * 1000:
            continue
        yield File(at_ms, name, f"{number:05}.jsonl", tuple(held))
        held.clear()


def truth(plan: Plan) -> dict[Key, int]:
    """The right count of every row of the result that is judged."""
    first, last = (EPOCH_MS + s * 1000 for s in (plan.judged_from_s, plan.judged_until_s))
    counts = Counter(
        (ts - ts % WINDOW_MS, key) for file in files(plan) for ts, key in file.rows if first <= ts < last
    )  # fmt: skip
    return dict(counts)


def since_begin_s(event_ms: int) -> float:
    """When a row of this event time is made, in seconds since the feeder began."""
    return (event_ms - EPOCH_MS) / 1000


def encoded(file: File) -> bytes:
    lines = (json.dumps({"ts": ts, "key": key}, separators=(",", ":")) + "\n" for ts, key in file.rows)
    return "".join(lines).encode()


def feed(root: Path, plan: Plan, begin: float) -> None:
    """Write every file at its time; `begin` is a time of the wall clock."""
    draft = root / "draft"
    for file in files(plan):
        content = encoded(file)
        time.sleep(max(0.0, begin + file.at_ms / 1000 - time.time()))
        draft.write_bytes(content)
        draft.rename(root / file.input / file.name)


def new_lines(folder: Path, seen: set[str]) -> list[dict[str, object]]:
    """For contenders that look into the folder themselves: the rows of files that were not seen yet."""
    found = sorted(path for path in folder.iterdir() if path.name not in seen)
    seen.update(path.name for path in found)
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.compare.workload", description="Feed the three inputs.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--plan", type=json.loads, required=True)
    parser.add_argument("--begin", type=float, required=True)
    given = parser.parse_args()
    feed(given.root, Plan(*given.plan), given.begin)


if __name__ == "__main__":
    main()
