"""Three ways to correct an operator's state after a failure: 003 §5.5 (table 5.1, figures 5-17, 5-18) and appendix B.

One of three inputs is missing for a while; tentative results come from the other two. When it is back:

- undo/redo: the operator kept the tuples from which its state follows, with markers. It looks for the marker from the
  end, rebuilds the state that it had before the failure from these tuples, and processes the stable ones.
- checkpoint/redo: it copied its state, in intervals and when the failure began. It takes the copy back and processes
  the stable tuples.
- forking (Holdfast): tentative results came from a fork; the stable state stands where it stood and goes on.

All three drive the same kernels (a windowed aggregate and a join, `holdfast.operators`) over the same tuples, in the
same batches, and must end with the same results, those of a run without a failure. Time to correct: from the moment at
which the missing tuples are there until all are processed, in seconds of the processor, because others use the machine.
Overhead: what is done in quiet times for the sake of a failure, as a share of an interval of 200 ms. Forking does
nothing then; that holds where X leaves time to start the fork at the suspicion. With X of 2 s or less it is kept ready
all the time, on Spark: `warm_cost` of `benches.dpc_tradeoff` says what that costs, and its `fork_ms` what it takes to
link the files of a checkpoint, which is done once per failure. Memory: bytes that are kept beside the operator's own
state, without the input, which stands in the log for all of them. News: how long a new tuple waits at worst; with one
copy of the state until it is corrected, with a fork for its batch.

    python -m benches.reconcile [--quick]
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl

from benches.report import finish, table
from holdfast.operators.footprints import Kernel
from holdfast.operators.functions import count, sum_
from holdfast.operators.join_kernel import JoinKernel, Keep
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.state import Blocks
from holdfast.operators.windows import time_window

STRATEGIES = ("undo/redo", "checkpoint/redo", "forking")
#: Of checkpoints and markers, as in the seeds' experiments.
INTERVAL_S = 0.2
#: Tuples in a batch: while results are due at once, and while a backlog is worked off.
LIVE, BACKLOG = 2_000, 50_000
QUIET = ("0 by construction: the fork is started at the suspicion. Where X is 2 s or less one is kept ready, and "
         "warm_cost of benches.dpc_tradeoff says what that costs")  # fmt: skip
#: Far above every time of a tuple: what closes all windows.
END_US = 3_600_000_000


class Operator(NamedTuple):
    name: str
    kernel: Callable[[int], Kernel]
    """For a state of so many tuples."""
    rows: Callable[[int, int, int], pl.DataFrame]
    """So many tuples from a time on, for a state of so many."""


def _aggregate(state: int) -> Kernel:
    return aggregate_kernel(time_window("1h"), Plan((count(), sum_("v")), (None, 0), {0: pl.Int64()}), ("_h",))[0]


def _aggregate_rows(tuples: int, since_us: int, state: int) -> pl.DataFrame:
    chance = np.random.default_rng((tuples, since_us))
    keys = np.arange(tuples) % state if since_us == 0 else chance.integers(0, state, tuples)
    return pl.DataFrame({"_h": keys, "_t": np.arange(tuples) + since_us, "_v0": chance.integers(0, 1000, tuples)})


def _join(state: int) -> Kernel:
    return JoinKernel(Keep(time_us=2 * state), Keep(time_us=0), ("_h",), ("_v0",), ("_v1",))


def _join_rows(tuples: int, since_us: int, state: int) -> pl.DataFrame:
    """Left and right in turn; the left ones of the last `2 * state` microseconds, `state` of them, are kept."""
    chance = np.random.default_rng((tuples, since_us))
    at = np.arange(2 * tuples if since_us == 0 else tuples) + since_us
    return pl.DataFrame({"_h": chance.integers(0, max(state, 1), len(at)), "_t": at, "_side": at % 2, "_w": at,
                         "_v0": chance.integers(0, 1000, len(at)), "_v1": at})  # fmt: skip


OPERATORS = (Operator("aggregate", _aggregate, _aggregate_rows), Operator("join", _join, _join_rows))


class Setting(NamedTuple):
    """An operator with its state before the failure, and what comes during it."""

    kernel: Kernel
    before: pl.DataFrame
    state: Blocks
    stable: pl.DataFrame
    tentative: pl.DataFrame


class Corrected(NamedTuple):
    """What a strategy took, and where it ended."""

    correct_s: float
    quiet_s: float
    """Of one interval."""
    kept_bytes: int
    news_s: float
    blocks: Blocks
    results: list[pl.DataFrame]


def feed(kernel: Kernel, blocks: Blocks, rows: pl.DataFrame, batch: int) -> tuple[Blocks, list[pl.DataFrame]]:
    results = []
    for at in range(0, len(rows), batch):
        mine = rows[at : at + batch]
        step = kernel.step(blocks, mine, int(mine["_t"][0]), int(mine["_t"][-1]) + 1)
        blocks = step.blocks
        if step.results is not None:
            results.append(step.results)
    return blocks, results


def setting(operator: Operator, state: int, failure: int) -> Setting:
    kernel = operator.kernel(state)
    before = operator.rows(state, 0, state)
    blocks, _ = feed(kernel, {}, before, BACKLOG)
    stable = operator.rows(failure, int(before["_t"][-1]) + 1, state)
    tentative = stable.filter(pl.int_range(pl.len()) % 3 != 2)  # One of three inputs is missing.
    return Setting(kernel, before, blocks, stable, tentative)


def copied(blocks: Blocks) -> dict[int, bytes]:
    found = {}
    for number, block in blocks.items():
        sink = io.BytesIO()
        block.write_ipc(sink, compression="uncompressed")
        found[number] = sink.getvalue()
    return found


def taken_back(saved: dict[int, bytes]) -> dict[int, pl.DataFrame]:
    return {number: pl.read_ipc(io.BytesIO(raw)) for number, raw in saved.items()}


def own_bytes(blocks: Blocks, shared: Blocks) -> int:
    return sum(b.estimated_size() for n, b in blocks.items() if shared.get(n) is not b)


# The strategies -------------------------------------------------------------------------------------------------------


def forking(s: Setting) -> Corrected:
    fork, news = s.state, []
    for at in range(0, len(s.tentative), LIVE):
        began = time.process_time()
        fork, _ = feed(s.kernel, fork, s.tentative[at : at + LIVE], LIVE)
        news.append(time.process_time() - began)
    began = time.process_time()
    blocks, results = feed(s.kernel, s.state, s.stable, BACKLOG)
    quiet = 0.0  # By construction, and said so: nothing is started or copied before the suspicion.
    return Corrected(time.process_time() - began, quiet, own_bytes(fork, s.state), max(news), blocks, results)


def checkpoint_redo(s: Setting) -> Corrected:
    began = time.process_time()
    saved = copied(s.state)
    quiet = time.process_time() - began
    feed(s.kernel, s.state, s.tentative, LIVE)
    began = time.process_time()
    blocks, results = feed(s.kernel, taken_back(saved), s.stable, BACKLOG)
    took = time.process_time() - began
    return Corrected(took, quiet, sum(map(len, saved.values())), took, blocks, results)


def undo_redo(s: Setting) -> Corrected:
    began = time.process_time()
    marker = min(int(b[next(c for c in ("_t", "_o") if c in b.columns)].min()) for b in s.state.values())
    quiet = time.process_time() - began
    buffer = [s.before[at : at + BACKLOG] for at in range(0, len(s.before), BACKLOG)]
    buffer += [s.tentative[at : at + LIVE] for at in range(0, len(s.tentative), LIVE)]
    feed(s.kernel, s.state, s.tentative, LIVE)
    first = int(s.stable["_t"][0])
    began = time.process_time()
    for number in range(len(buffer) - 1, -1, -1):  # Each tuple is compared: with what is undone, and with the marker.
        at = buffer[number]["_t"]
        if not ((at >= first).all() or (at > marker).any()):
            break
    rebuilt, _ = feed(s.kernel, {}, s.before, BACKLOG)
    blocks, results = feed(s.kernel, rebuilt, s.stable, BACKLOG)
    took = time.process_time() - began
    kept = s.before.estimated_size() + s.tentative.estimated_size()
    return Corrected(took, quiet, kept, took, blocks, results)


RUN = dict(zip(STRATEGIES, (undo_redo, checkpoint_redo, forking), strict=True))


def outcome(kernel: Kernel, blocks: Blocks, results: list[pl.DataFrame]) -> pl.DataFrame:
    """All results, those of windows that are still open included, in an order of their own."""
    last = kernel.step(blocks, next(iter(blocks.values())).clear(), END_US - 1, END_US).results
    every = pl.concat([*results, *([] if last is None else [last])])
    return every.sort(every.columns)


def measure(operator: Operator, state: int, failure: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over rounds in which all take turns; each must be right."""
    s = setting(operator, state, failure)
    right = outcome(s.kernel, *feed(s.kernel, s.state, s.stable, BACKLOG))
    found: dict[str, list[Corrected]] = {name: [] for name in STRATEGIES}
    for turn in range(rounds):
        for name in STRATEGIES if turn % 2 else reversed(STRATEGIES):
            got = RUN[name](s)
            assert outcome(s.kernel, got.blocks, got.results).equals(right), f"{name} gave other results"
            found[name].append(got._replace(blocks={}, results=[]))
    return {name: {"correct_s": round(statistics.median(g.correct_s for g in got), 5),
                   "quiet": round(statistics.median(g.quiet_s for g in got) / INTERVAL_S, 5),
                   "news_s": round(statistics.median(g.news_s for g in got), 5),
                   "bytes": statistics.median(g.kept_bytes for g in got)} for name, got in found.items()}  # fmt: skip


def behind(found: dict[str, dict[str, dict[int, dict[str, dict[str, float]]]]]) -> list[str]:
    """Where forking is not the first, by more than a twentieth."""
    said = []
    for operator, kinds in found.items():
        for kind, sizes in kinds.items():
            for size, by in sizes.items():
                for what in ("correct_s", "quiet", "news_s", "bytes"):
                    said += [f"{operator}, {kind} {size:,}: {what} of {name} is {by[name][what]:g}, forking "
                             f"{by['forking'][what]:g}" for name in STRATEGIES[:2]
                             if by[name][what] < 0.95 * by["forking"][what]]  # fmt: skip
    return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.reconcile", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="smaller states, three rounds")
    given = parser.parse_args()
    rounds, states, failures = (
        (3, (1_000, 20_000, 100_000), (5_000, 50_000))
        if given.quick
        else (7, (1_000, 10_000, 100_000, 500_000, 1_000_000), (5_000, 25_000, 100_000, 500_000))
    )
    found: dict[str, dict[str, dict[int, dict[str, dict[str, float]]]]] = {}
    for operator in OPERATORS:
        found[operator.name] = {
            "state": {size: measure(operator, size, 5_000, rounds) for size in states},
            "failure": {size: measure(operator, 20, size, rounds) for size in failures},
        }
        for kind, sizes in found[operator.name].items():
            rows = [[f"{size:,}", *(by[n][what] for what in ("correct_s", "quiet") for n in STRATEGIES),
                     *(round(by[n]["bytes"] / 1e6, 2) for n in STRATEGIES)] for size, by in sizes.items()]  # fmt: skip
            heads = [f"{n}, {unit}" for unit in ("s", "overhead", "MB") for n in STRATEGIES]
            table(f"{operator.name}: by {kind}, tuples", [kind, *heads], rows)
    ratio = {
        name: {operator: {kind: {size: round(by[name]["correct_s"] / by["forking"]["correct_s"], 2)
                                 for size, by in sizes.items()} for kind, sizes in kinds.items()}
               for operator, kinds in found.items()} for name in STRATEGIES[:2]
    }  # fmt: skip
    lost = behind(found)
    finish("reconcile", ratio_to_forking=ratio, forking_ahead=not lost, forking_behind=lost, forking_quiet=QUIET,
           equal_results=True, detail={"found": found})  # fmt: skip


if __name__ == "__main__":
    main()
