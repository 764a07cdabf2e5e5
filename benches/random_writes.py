"""Sequential and random writes of 10 bytes to one file, with a sync at the end and without: 002, table 5.1.

The text's numbers leave no room for a sync after each write, and its sizes not for the operations it names; so sizes
are taken (96,000 writes make 0.96 MB), sequential writes go through a buffer as in its C, and a sync comes at the end.
Random ones go to places of the same file, each by a system call. An NFS mount is measured, too, if a folder on one is
given.

    python -m benches.random_writes [--quick] [--nfs FOLDER]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from benches.report import console, finish, table

DATA = b"0123456789"
SIZES = {"0.96 MB": 96_000, "9.6 MB": 960_000, "96 MB": 9_600_000}


def sequential(path: Path, count: int, sync: bool) -> float:
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(count):
            file.write(DATA)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    return time.perf_counter() - began


def scattered(path: Path, count: int, sync: bool) -> float:
    places = (np.random.default_rng(1).permutation(count) * len(DATA)).tolist()
    with path.open("r+b") as file:
        number = file.fileno()
        began = time.perf_counter()
        for place in places:
            os.pwrite(number, DATA, place)
        if sync:
            os.fsync(number)
        return time.perf_counter() - began


def measure(folder: Path, where: str, sizes: dict[str, int]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for size, count in sizes.items():
        for sync in (True, False):
            path, name = folder / "file", " fsync" if sync else ""
            found.setdefault(f"{where} seq{name}", {})[size] = round(sequential(path, count, sync), 4)
            os.sync()  # What is left of the sequential run is not the random one's.
            found.setdefault(f"{where} rnd{name}", {})[size] = round(scattered(path, count, sync), 4)
            path.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.random_writes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="without 96 MB")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (a real disk; default: here)")
    parser.add_argument("--nfs", type=Path, help="a folder on an NFS mount")
    given = parser.parse_args()
    sizes = dict(list(SIZES.items())[: 2 if given.quick else 3])
    seconds = {}
    for where, folder in (("local", given.folder), ("nfs", given.nfs)):
        if folder is None:
            console.print("NFS left out: no folder was given (--nfs)")
            continue
        with tempfile.TemporaryDirectory(dir=folder, prefix=".bench-") as scratch:
            seconds |= measure(Path(scratch), where, sizes)
    table("seconds", ["", *sizes], [[name, *by.values()] for name, by in seconds.items()])
    times = {size: round(seconds["local rnd"][size] / seconds["local seq"][size], 1) for size in sizes}
    finish("random_writes", seconds=seconds, random_over_sequential=times)


if __name__ == "__main__":
    main()
