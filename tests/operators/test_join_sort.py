"""Join and BSort against the reference, cut into batches at random."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.join_kernel import JoinKernel, Keep
from holdfast.operators.sorting import SortKernel
from tests.operators import reference as ref
from tests.operators.test_windows_reference import EXAMPLES

sides = st.one_of(st.tuples(st.just("time"), st.integers(0, 30)), st.tuples(st.just("count"), st.integers(1, 4)))
rows = st.lists(st.tuples(st.integers(0, 59), st.integers(0, 1), st.integers(0, 2), st.integers(0, 99)), max_size=40)


def kept(side: tuple[str, int]) -> Keep:
    return Keep(time_us=side[1]) if side[0] == "time" else Keep(count=side[1])


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(rows=rows, left=sides, right=sides, seed=st.integers(0, 2**32))
def test_a_join_gives_the_pairs_of_the_reference(
    rows: list[tuple[int, int, int, int]], left: tuple[str, int], right: tuple[str, int], seed: int
) -> None:
    rows = sorted(rows, key=lambda r: r[0] // 10)
    kernel = JoinKernel(kept(left), kept(right), ("_h",), ("_v0",), ("_v1",))
    shape = {"_h": pl.Int64, "_t": pl.Int64, "_side": pl.Int64, "_w": pl.Int64, "_v0": pl.Int64, "_v1": pl.Int64}
    chance, blocks, found, since = random.Random(seed), {}, [], -(2**62)
    ends = [*sorted(chance.sample([10, 20, 30, 40, 50], chance.randrange(6))), 60]
    for end in ends:
        mine = [(g, t, s, i, v, v) for i, (t, s, g, v) in enumerate(rows) if since <= t < end]
        step = kernel.step(blocks, pl.DataFrame(mine, schema=shape, orient="row"), since, end)
        blocks, since = step.blocks, end
        found += [] if step.results is None else step.results.rows()
    assert sorted(found) == sorted(ref.joined(rows, left, right))


#: A join of tuples that all have one key, in a process of its own; it prints by how many MiB it grew.
ONE_KEY = """
import resource
import polars as pl
from holdfast.operators.join_kernel import JoinKernel, Keep

count = 4000
kernel = JoinKernel(Keep(time_us=1), Keep(time_us=1), ("_h",), ("_v0",), ("_v1",))
side = [i % 2 for i in range(2 * count)]
rows = pl.DataFrame({"_h": [7] * 2 * count, "_t": [10 * (i // 2) for i in range(2 * count)], "_side": side,
                     "_w": range(2 * count), "_v0": range(2 * count), "_v1": range(2 * count)})
kernel.step({}, rows[:10], -(2**62), 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step = kernel.step({}, rows, -(2**62), 100)
assert len(step.results) == count, len(step.results)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_the_memory_of_a_join_is_that_of_its_tuples_and_pairs() -> None:
    """4,000 tuples a side of one key are 16 million pairs, of which 4,000 fall into the band."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", ONE_KEY], capture_output=True, text=True, env=env, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(rows=rows, size=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_bsort_pushes_out_what_the_reference_does(rows: list[tuple[int, int, int, int]], size: int, seed: int) -> None:
    plain = sorted(((t, g, v) for t, _, g, v in rows), key=lambda r: r[0] // 10)
    kernel = SortKernel(size, ("_h",), ("_v0",))
    shape = {"_h": pl.Int64, "_t": pl.Int64, "_w": pl.Int64, "_v0": pl.Int64}
    chance, blocks, found, since = random.Random(seed), {}, [], -(2**62)
    for end in [*sorted(chance.sample([10, 20, 30, 40, 50], chance.randrange(6))), 60]:
        mine = [(g, t, i, v) for i, (t, g, v) in enumerate(plain) if since <= t < end]
        step = kernel.step(blocks, pl.DataFrame(mine, schema=shape, orient="row"), since, end)
        blocks, since = step.blocks, end
        found += [] if step.results is None else step.results.rows()
    assert sorted(found) == sorted(ref.bsorted(plain, size))
