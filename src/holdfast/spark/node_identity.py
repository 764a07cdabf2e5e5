"""Whether a node may go on: what it computes is what it has computed, or somebody has said what is to become of it.

Rules:
1. What counts is the result: plan, functions, columns, inputs (local ones must be the same streams still), buckets.
   Promises (delay, replicas, retention, policies) may change at every start.
2. A change is refused before the query starts. `holdfast upgrade` answers: `compatible` takes the state over, `anew`
   begins with a fresh one and results from a bucket on. Both are written into the output's history.
3. What is done about it can be cut short anywhere: history and holes first, then the new beginning, whose checkpoint
   has the new note already; the order goes last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.clock import now_us
from holdfast.diagram import NodeSpec
from holdfast.model.errors import UsageError
from holdfast.model.schema import schema_text
from holdfast.model.time import BEGINNING_US, duration_text, instant_text
from holdfast.spark.checkpoint_place import spark_part
from holdfast.spark.plan_identity import identity, plan_lines, state_differences
from holdfast.spark.query_start import Beginning, begin_anew
from holdfast.stream.changes import Change, note_change
from holdfast.stream.disk import Disk
from holdfast.stream.holes import note_hole
from holdfast.stream.identity import (
    Identity,
    Refused,
    Upgrade,
    changed,
    has_begun,
    note_identity,
    read_identity,
    read_upgrade,
    settle,
    told,
    write_refused,
)
from holdfast.stream.store import Stream

log = logging.getLogger(__name__)


def node_identity(
    node: NodeSpec, columns: pa.Schema, bucket_us: int, computed: DataFrame | list[str], settings: str,
    inputs: dict[str, str],
) -> Identity:  # fmt: skip
    """Rule 1; `computed` is what the function gave: a frame, or the lines of its flow. `inputs`: ids of streams."""
    own = getattr(node.function, "__module__", None) or ""
    lines = [
        f"inputs: {', '.join(node.inputs)}",
        f"output bucket: {duration_text(bucket_us)}",
        f"columns: {schema_text(columns)}",
        f"stime: {node.stime or 'auto'}",
        f"boundaries: {node.boundaries}",
        settings,
    ]
    return identity([*lines, *(computed if isinstance(computed, list) else plan_lines(computed, own))], inputs)


class Admission:
    """The look at one node before its query starts. `beginning` is where that query stands."""

    def __init__(
        self, node: NodeSpec, home: Path, beginning: Beginning, output: Stream, found: Identity, *, flow: bool = False
    ) -> None:
        """`flow`: it has operators of Holdfast's or the user's, whose state fits nothing else."""
        self._node, self._home, self._beginning, self._output, self._found = node, home, beginning, output, found
        self._flow = flow
        self._checkpoint = beginning.checkpoint(home)
        self._state = cast(Path, spark_part(self._checkpoint))  # As much of a path as this needs.

    def admitted(self, begin_life: Callable[[Path], None]) -> Beginning:
        """Where the query begins; raises if it must not. `begin_life` tells the operators' state of a new checkpoint
        from what the output's log has of earlier ones."""
        differences = changed(self._checkpoint, self._found, self._state)
        if not differences:
            self._note()
            return self._beginning
        order = read_upgrade(self._home)
        if order is None or order.identity != self._found.number:
            self._refuse(differences)
        assert order is not None
        if order.what == "compatible":
            self._tell(boundary_of(self._output), order, differences)
            note_identity(self._checkpoint, self._found)
        else:
            self._beginning = self._begin_anew(order, differences, begin_life)
        settle(self._home)
        return self._beginning

    def _note(self) -> None:
        before = read_identity(self._checkpoint)
        if before != self._found:
            if before is None and has_begun(self._state):
                log.info("node %s: what it computes is noted from now on; a change will be refused", self._node.name)
            note_identity(self._checkpoint, self._found)
        settle(self._home)

    def _refuse(self, differences: list[str]) -> None:
        before = read_identity(self._checkpoint)
        assert before is not None, "it was compared with something"
        misfits = differences if self._flow else state_differences(before, self._found)
        write_refused(self._home, Refused(self._found, self._output.name, self._output.definition.bucket_us,
                                          tuple(differences), tuple(misfits)))  # fmt: skip
        verb = f"`holdfast upgrade {self._node.name} --root {self._output.folder.parent}"
        raise UsageError(
            f"node {self._node.name} must compute what its state was made by; its definition has changed: "
            f"{told(differences)}; change it back, or give the node another name= and output=, or say {verb} --from "
            f"end` (a fresh state, and new results from there on) or {verb} --compatible` (you know that the state "
            f"fits), and start again"
        )

    def _begin_anew(self, order: Upgrade, differences: list[str], begin_life: Callable[[Path], None]) -> Beginning:
        ended, written_us = _standing(self._output)
        if ended:
            raise UsageError(
                f"node {self._node.name} cannot begin anew: its output {self._output.name} has ended; give it another "
                f"output="
            )
        size = self._output.definition.bucket_us
        wanted_us = written_us if order.from_us is None else -(-order.from_us // size) * size
        first_us = max(wanted_us, written_us)
        replay_us = order.replay_us if order.replay_us is not None else self._node.convergent_us
        start_us = None if replay_us is None or first_us <= BEGINNING_US else (first_us - replay_us) // size * size
        if BEGINNING_US < written_us < first_us:
            note_hole(self._output.folder, written_us, first_us, Disk())
        self._tell(first_us, order, differences)
        _drop_waiting(self._output)
        place = Beginning(generation=self._beginning.generation + 1).checkpoint(self._home)
        note_identity(place, self._found)
        begin_life(place)
        right_from_us = first_us if first_us > BEGINNING_US else None
        return begin_anew(self._home, self._beginning, start_us, right_from_us)

    def _tell(self, from_us: int, order: Upgrade, differences: list[str]) -> None:
        note_change(self._output.folder, Change(from_us, order.what, tuple(differences), now_us()), Disk())
        log.warning("node %s: its definition has changed (%s); results from %s on are those of the new one",
                    self._node.name, told(differences),
                    instant_text(from_us) if from_us > BEGINNING_US else "the beginning")  # fmt: skip


def boundary_of(stream: Stream) -> int:
    return _standing(stream)[1]


def _standing(stream: Stream) -> tuple[bool, int]:
    """Whether the stream has ended, and how far it is written."""
    reader = stream.reader()
    try:
        return reader.closed, reader.boundary_us
    finally:
        reader.close()


def _drop_waiting(stream: Stream) -> None:
    """Results of the old definition whose bucket is not complete: the new one fills it."""
    writer = stream.writer(takeover=True)
    try:
        writer.commit([], now_us=now_us(), pending=(0, b""))
    finally:
        writer.release(now_us())
