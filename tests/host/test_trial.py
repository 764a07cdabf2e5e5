"""Trials and swaps inside one host, its source beside it, without a network. Processes, kills, cuts: tests/faults."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine import Engine
from holdfast.host import rebuild, swap
from holdfast.host import trial as trials
from holdfast.host.catalog import Catalog
from holdfast.host.controller import Controller
from holdfast.host.crash_points import SWAPPED
from holdfast.host.deployment import load_deployment
from holdfast.host.host import Host
from holdfast.host.reload import Reload
from holdfast.host.service import Refused
from holdfast.host.trial import Trial, TrialOrder, Trials
from holdfast.model.errors import UsageError
from holdfast.spark import query_start
from holdfast.stream.changes import read_changes
from holdfast.stream.disk import Disk
from holdfast.stream.holes import note_hole
from holdfast.stream.sealed import seal
from tests.faults.test_trial import application
from tests.load.pair import Spring
from tests.load.plain_engine import PlainEngine

SECOND = 1_000_000
SWAPS = int(os.environ.get("HOLDFAST_SWAPS", "3"))
FILE = """
app: app.py
hosts:
  a: {address: "127.0.0.1:7999", root: a/}
sources:
  flows: a
nodes:
  counts: [a]
"""


class OneHost:
    """`text` is the application that runs at first."""

    running: asyncio.Task[None]

    def __init__(self, folder: Path, engine: Engine, text: str) -> None:
        self.folder = folder
        (folder / "net.yaml").write_text(FILE)
        (folder / "app.py").write_text(text)
        self.spring = Spring(holdfast.open(folder / "a").create("flows", "source string, bytes bigint", bucket="1s"))
        self.begin(engine)

    def begin(self, engine: Engine) -> None:
        """A host on what is there."""
        folder = self.folder
        deployment = load_deployment(folder / "net.yaml")
        app = deployment.load_app()
        self.host = Host("a", Catalog(app.diagram(), deployment), folder / "a", engine)
        self.reload = Reload(self.host, deployment, app, lambda _: None)
        self.trials = Trials(self.host, self.reload)

    async def stable(self) -> None:
        def movable() -> bool:
            live = self.host.controllers.get("counts@a")
            return isinstance(live, Controller) and live.movable

        await self.until(movable)

    async def tried(self, order: TrialOrder) -> Trial:
        """A trial, once the node takes one: on a busy machine it may doubt an input for a moment."""
        while True:
            await self.stable()
            try:
                return await self.trials.start("counts", order)
            except Refused as error:
                if "must be STABLE here" not in str(error):
                    raise

    async def ended(self) -> None:
        await asyncio.wait({self.running})

    @property
    def output(self) -> holdfast.Stream:
        return self.host.store.open("counts")

    def rows(self) -> list[dict[str, Any]]:
        reader = self.output.reader()
        found = [row for _, batch in reader.scan(0, 2**61) for row in batch.to_pylist()]
        reader.close()
        return found

    async def until(self, condition: Any) -> None:
        """Time goes on meanwhile: a second of the source every tenth of one."""
        async with asyncio.timeout(120):
            while not condition():
                self.spring.flow()
                await asyncio.sleep(0.1)


@asynccontextmanager
async def running(folder: Path, engine: Engine | None = None, text: str = "") -> AsyncIterator[OneHost]:
    one = OneHost(folder, engine or PlainEngine(), text or application())
    run = one.running = asyncio.ensure_future(one.host.run())
    try:
        await one.until(lambda: "counts" in one.host.store.names() and len(one.rows()) > 6)
        await one.stable()
        yield one
    finally:
        one.host.stop()
        await run
        one.spring.close()


def test_a_trial_goes_on_from_the_live_state_and_is_swapped_in_with_a_column_more(tmp_path: Path) -> None:
    """S1: the copy changes nothing; D1: the stream goes on, and nulls stand where there was no such column."""

    async def check() -> None:
        async with running(tmp_path) as one:
            (tmp_path / "app.py").write_text(application(scale=10, rate=True))
            trial = await one.trials.start("counts", TrialOrder("app.py"))
            await one.until(lambda: trial.status()["buckets"] >= 3 and trial.level)
            said = trial.status()
            assert said["changed"] == said["live"] == said["trial"] > 0
            assert said["added"] == "rate double"
            with pytest.raises(Exception, match="is tried just now"):
                await one.trials.start("counts", TrialOrder("app.py"))
            swap = asyncio.ensure_future(one.trials.swap(trial))
            await one.until(swap.done)
            swap.result()
            (boundary,) = {change.from_us for change in read_changes(one.output.folder)}
            await one.until(lambda: one.rows()[-1].get("rate") is not None and len(one.rows()) > 40)
            rows = one.rows()
            ends = [int(row["window"]["end"].timestamp() * 1e6) for row in rows]
            for row, end in zip(rows, ends, strict=True):
                before = end < boundary
                assert row["n"] in ((3, 4) if before else (30, 40))
                assert (row["rate"] is None) == before
            assert len({(end, row["source"]) for row, end in zip(rows, ends, strict=True)}) == len(rows), "none twice"
            assert len(rows) == 3 * len(set(ends))
            assert max(ends) - min(ends) == (len(set(ends)) - 1) * 1_000_000, "no gap"
            assert one.host.states() == {"counts@a": "STABLE"}

    asyncio.run(check())


def check_stream(one: OneHost, changes: list[tuple[int, int]]) -> None:
    """Every window of every source once, in order, by the scale that held then."""
    rows = one.rows()
    found = [(round(row["window"]["end"].timestamp() * 1e6), row["source"], row["n"]) for row in rows]
    first_us, last_us = found[0][0], found[-1][0]
    expected = []
    for end in range(first_us, last_us + SECOND, SECOND):
        scale = [scale for from_us, scale in changes if from_us <= end][-1]
        expected += [(end, "s0", 4 * scale), (end, "s1", 3 * scale), (end, "s2", 3 * scale)]
    assert found == expected


async def swapped(one: OneHost, text: str, cut: bool = False) -> None:
    """Try and swap, time going on; with `cut`, the input goes away at the same moment and comes back in a while."""
    (one.folder / "app.py").write_text(text)
    await one.stable()
    trial = await one.trials.start("counts", TrialOrder("app.py"))
    await one.until(lambda: trial.status()["buckets"] >= 1)
    swap = asyncio.ensure_future(one.trials.swap(trial))
    if cut:
        one.host.cuts.cut("flows")
        for _ in range(15):
            one.spring.flow()
            await asyncio.sleep(0.1)
        one.host.cuts.heal("flows")
    await one.until(swap.done)
    swap.result()


def test_many_swaps_under_load_and_amid_failures_leave_no_gap_and_no_repetition(tmp_path: Path) -> None:
    """D1, as a reader beside the log gets it. More of them: HOLDFAST_SWAPS=20."""

    async def check() -> None:
        async with running(tmp_path) as one:
            subscriber = one.output.subscribe(start="beginning")
            for swaps in range(SWAPS):
                await swapped(one, application(scale=swaps + 2, rate=swaps >= SWAPS // 2), cut=swaps % 2 == 1)
            await one.until(lambda: one.rows()[-1]["n"] >= 3 * (SWAPS + 1))
            changes = [(0, 1), *((c.from_us, k + 2) for k, c in enumerate(read_changes(one.output.folder)))]
            assert len(changes) == SWAPS + 1
            check_stream(one, changes)
            ids = [id for batch in subscriber.poll() for id in batch.column("tuple_id").to_pylist()]
            assert ids == list(range(1, len(ids) + 1))
            assert len(ids) >= 3 * SWAPS
            subscriber.close()

    asyncio.run(check())


@pytest.mark.parametrize("step", [*SWAPPED, "moved"])
def test_a_host_that_ends_at_any_step_goes_on_with_one_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before the order is written with the old one, behind it with the new one. "moved" is a point of the engine's: the
    copy lies at its place, and nothing says yet that it counts."""

    class Killed(BaseException):
        pass

    def reached(at: str) -> None:
        if at == step:
            raise Killed

    def sealed(value: Any) -> bytes:
        if step == "moved" and value.generation > 0:
            raise Killed
        return seal(value)

    async def check() -> None:
        ordered = step not in ("swap-copied", "swap-stopped")
        async with running(tmp_path) as one:
            for module in (trials, swap, rebuild):
                monkeypatch.setattr(module, "reached", reached)
            monkeypatch.setattr(query_start, "seal", sealed)
            monkeypatch.setattr(Host, "resume", lambda *_: None)  # Nobody does who is killed.
            with pytest.raises(Killed):
                await swapped(one, application(scale=7))
            monkeypatch.undo()
            one.host.stop()
            await one.ended()
            (tmp_path / "app.py").write_text(application(scale=7) if ordered else application())
            one.begin(PlainEngine())
            again = asyncio.ensure_future(one.host.run())
            rows = len(one.rows())
            await one.until(lambda: len(one.rows()) > rows + 12)
            changes = read_changes(one.output.folder)
            assert len(changes) == ordered
            check_stream(one, [(0, 1), *((change.from_us, 7) for change in changes)])
            assert not (tmp_path / "a" / ".holdfast" / "nodes" / "counts" / "swap").exists()
            one.host.stop()
            await again

    asyncio.run(check())


def test_a_window_of_another_length_is_tried_and_swapped_in_with_a_fresh_state(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as one:
            (tmp_path / "app.py").write_text(application(window=2))
            trial = await one.trials.start("counts", TrialOrder("app.py", replay="4s"))
            await one.until(lambda: trial.status()["buckets"] >= 4)
            assert trial.status()["equal"] == 0
            done = asyncio.ensure_future(one.trials.swap(trial))
            await one.until(done.done)
            assert done.result()["what"] == "anew"
            (change,) = read_changes(one.output.folder)
            await one.until(lambda: one.rows()[-1]["stime"].timestamp() * 1e6 > change.from_us + 6 * SECOND)
            found = [(round(r["stime"].timestamp() * 1e6), r["source"], r["n"]) for r in one.rows()]
            expected = []
            for end in range(found[0][0], found[-1][0] + SECOND, SECOND):
                length = 1 if end < change.from_us else 2
                if end // SECOND % length == 0:
                    expected += [(end, "s0", 4 * length), (end, "s1", 3 * length), (end, "s2", 3 * length)]
            assert found == expected

    asyncio.run(check())


def test_a_deployment_that_is_read_again_amid_a_swap_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would start the node that the swap has stopped, beside the files that the swap changes."""
    started: list[str] = []

    async def check() -> None:
        async with running(tmp_path) as one:
            set_up, finish, loop = one.host.set_up_own, trials.finish_swap, asyncio.get_running_loop()

            async def set_up_own(node: Any) -> None:
                started.append("set up")
                await set_up(node)

            def finish_swap(*given: Any) -> bool:
                read = asyncio.run_coroutine_threadsafe(one.reload.again(), loop)
                with pytest.raises(TimeoutError):
                    read.result(0.5)
                started.append("finished")
                return finish(*given)

            monkeypatch.setattr(one.host, "set_up_own", set_up_own)
            monkeypatch.setattr(trials, "finish_swap", finish_swap)
            await swapped(one, application(scale=7))
            await one.stable()
            assert started == ["finished", "set up"]

    asyncio.run(check())


def test_input_behind_the_copy_of_a_swap_stays_while_the_trial_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new query begins at the copy: what the trial has read since must not be let go."""
    looked: list[int] = []

    async def check() -> None:
        async with running(tmp_path) as one:
            level = Trials._level

            async def later(self: Trials, live: Controller, waiting: Any) -> None:
                trial = one.host.controllers["counts.trial@a"]
                assert isinstance(trial, Controller)
                assert trial.core is not None
                assert live.core is not None
                begun = trial.core.needed_from
                await one.until(lambda: min(trial.core.needed_from, live.core.needed_from) > begun + 5)
                await asyncio.sleep(2 * trials._LOOK_S)
                assert live._needed_from <= begun
                live.keep("movement", begun - 100)
                assert live._needed_from == begun - 100
                live.release("movement")
                looked.append(live._needed_from)
                await level(self, live, waiting)

            monkeypatch.setattr(Trials, "_level", later)
            await swapped(one, application(scale=7))

    asyncio.run(check())
    assert looked


def test_a_trial_that_has_left_results_out_is_not_swapped_in(tmp_path: Path) -> None:
    """D14: the stream would lack them, and nothing would say so."""

    async def check() -> None:
        async with running(tmp_path) as one:
            (tmp_path / "app.py").write_text(application(scale=7))
            trial = await one.trials.start("counts", TrialOrder("app.py"))
            await one.until(lambda: trial.status()["buckets"] >= 1)
            first_us = trial.live.boundary_us
            note_hole(trial.site.store.open("counts").folder, first_us, first_us + 2 * SECOND, Disk())
            with pytest.raises(UsageError, match=r"must have read all of its input.*are missing; nothing was changed"):
                await one.trials.swap(trial)
            assert one.host.controllers["counts@a"].serves
            assert read_changes(one.output.folder) == ()

    asyncio.run(check())


def test_columns_are_not_added_to_a_stream_that_another_node_reads(tmp_path: Path) -> None:
    """It would compute something else at its next start, and be refused then."""
    again = """
@app.node(inputs=["counts"], name="again", max_delay="1s", keepalive="100ms")
def again(c):
    raise NotImplementedError
"""

    async def check() -> None:
        async with running(tmp_path, text=application() + again) as one:
            with pytest.raises(UsageError, match=r"only if no node reads it.*rate double.*again@a"):
                await swapped(one, application(rate=True) + again)
            assert one.host.controllers["counts@a"].serves
            assert read_changes(one.output.folder) == ()

    asyncio.run(check())


def test_nothing_of_a_trial_and_of_the_query_before_a_swap_stays_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of user-defined operators lie in a store and in scratch, outside the folders that go."""
    forgotten: list[str] = []
    monkeypatch.setattr(Controller, "forget", lambda self: forgotten.append(self.plan.replica))

    async def check() -> None:
        async with running(tmp_path) as one:
            (tmp_path / "new.py").write_text(application(scale=2))
            await one.trials.end(await one.trials.start("counts", TrialOrder("new.py")))
            assert forgotten == ["counts.trial@a"]
            await swapped(one, application(scale=7))
            assert forgotten == ["counts.trial@a", "counts.trial@a", "counts@a"]

    asyncio.run(check())


def test_a_trial_that_nobody_asks_for_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "IDLE_S", 0.5)

    async def check() -> None:
        async with running(tmp_path) as one:
            (tmp_path / "new.py").write_text(application(scale=2))
            await one.trials.start("counts", TrialOrder("new.py"))
            assert set(one.host.controllers) == {"counts@a", "counts.trial@a"}
            await one.until(lambda: set(one.host.controllers) == {"counts@a"})
            await one.until(lambda: not (tmp_path / "a" / ".holdfast" / "trials" / "counts").exists())
            (tmp_path / "new.py").write_text(application(window=2))
            with pytest.raises(UsageError, match=r"cannot be carried over.*--replay"):
                await one.trials.start("counts", TrialOrder("new.py"))
            assert set(one.host.controllers) == {"counts@a"}

    asyncio.run(check())
