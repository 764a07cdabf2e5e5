"""A replica that gives nothing says why; a host's log stays within bounds."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.host.log_rotation import cut_log
from holdfast.host.replica_status import Wait, recovery, status_of
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import InputPlan, NodePlan, OutputPlan, Resume
from tests.protocol.dpc.dpc_scene import BUCKET, Scene, plan, two_inputs


def test_a_replica_that_starts_without_an_input_names_it_and_says_that_it_waits() -> None:
    """003 §4.8: a node that recovers answers nothing before it is STABLE; so it gives nothing tentative either."""
    inputs = (InputPlan("x", ("x@src",)), InputPlan("y", ("y@src",)))
    core = NodeCore(NodePlan("n@a", inputs, OutputPlan("n", ("x", "y"))), Resume(0, 0, 0), 0)
    wait = recovery(core)
    assert wait is not None
    assert wait.kind == "inputs"
    assert "no stable producer of x, y answers" in wait.why
    assert "nothing tentative before it has been STABLE once" in wait.why
    status = status_of(core, "none", wait)
    assert (status["state"], status["waits_for"], status["why"]) == ("RECOVERING", "inputs", wait.why)


def test_a_replica_that_reads_what_it_missed_says_how_much() -> None:
    scene = Scene(plan({"x": ("x",)}))
    scene.says("x", "x", 1, 300)  # type: ignore[arg-type]
    scene.main("x", 300)
    assert recovery(scene.core) == Wait("replay", "it reads what it missed of its inputs: 30s to go")


def test_a_replica_that_was_stable_waits_for_nothing() -> None:
    core = two_inputs().core
    assert recovery(core) is None
    assert "why" not in status_of(core, "none", None)
    assert core.plan.bucket_us == BUCKET


def test_a_log_that_is_too_long_is_begun_anew_and_one_part_kept(tmp_path: Path) -> None:
    log = tmp_path / "host.log"
    assert not cut_log(log, 100)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        for part in (b"a", b"b"):
            os.write(fd, part * 101)
            assert cut_log(log, 100)
            assert (log.stat().st_size, (tmp_path / "host.log.1").read_bytes()) == (0, part * 101)
        os.write(fd, b"goes on")
        assert not cut_log(log, 100)
    finally:
        os.close(fd)
    assert log.read_bytes() == b"goes on"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host.log", "host.log.1"]
