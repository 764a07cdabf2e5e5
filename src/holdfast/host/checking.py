"""Checks an application without running it: functions are described to the engine over empty inputs, nothing runs.

Rules:
1. The streams of the application are not touched. Its nodes are set up in a folder of their own that goes afterwards,
   over empty streams with the same columns and buckets.
2. A node is set up as a host would do it, so that what is said here is what a start would say. A node whose input
   cannot be known, since the one before it is wrong, is left out.
3. What a start would warn of in the log is part of the answer.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.diagram import Diagram, NodeSpec
from holdfast.engine import Description, Engine
from holdfast.model.errors import UnknownStream, UsageError
from holdfast.model.time import duration_text
from holdfast.stream.store import Stream, StreamStore


@dataclass(frozen=True)
class Checked:
    """One node: what its query is, or why it would be refused."""

    node: str
    query: Description = Description("")  # noqa: RUF009 - frozen
    wrong: str | None = None
    warnings: tuple[str, ...] = ()
    """Rule 3."""

    @property
    def text(self) -> str:
        if self.wrong is not None:
            return f"{self.node}: {self.wrong}"
        facts = [f"stime is {self.query.stime}"]
        if self.query.lag_us:
            facts.append(f"results come up to {duration_text(self.query.lag_us)} after their time")
        if self.query.bucket_by_bucket:
            facts.append("runs bucket by bucket")
        return f"{self.node}: {'; '.join(facts)}"


def check(diagram: Diagram, streams: StreamStore, engine: Engine) -> Iterator[Checked]:
    """Every node of an application, upstream first. `streams` has its sources."""
    engine.start()
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        copies = StreamStore(Path(folder))
        unknown: set[str] = set()
        for node in diagram.nodes:
            if unknown.intersection(node.inputs):
                unknown.add(node.output)
                continue
            with _warnings() as warnings:
                found = _checked(node, streams, copies, engine)
            found = replace(found, warnings=tuple(w.removeprefix(f"node {node.name}: ") for w in warnings))
            if found.wrong is not None:
                unknown.add(node.output)
            yield found


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """What is warned of meanwhile, each once: a node is described more than once."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (text := record.getMessage()) not in said:
                said.append(text)

    log, kept = logging.getLogger("holdfast"), Kept(logging.WARNING)
    log.addHandler(kept)
    try:
        yield said
    finally:
        log.removeHandler(kept)


def _checked(node: NodeSpec, streams: StreamStore, copies: StreamStore, engine: Engine) -> Checked:
    try:
        check_stripes(node, streams)
        inputs = [_empty(name, streams, copies) for name in node.inputs]
    except UnknownStream as error:
        return Checked(node.name, wrong=f"{error}; create it first, so that its columns are known")
    except UsageError as error:
        return Checked(node.name, wrong=str(error))
    queries = engine.queries(node, inputs, copies.root, copies.root / ".holdfast" / node.name)
    try:
        queries.create_output(node.bucket_us or max(stream.definition.bucket_us for stream in inputs))
        return Checked(node.name, queries.describe())
    except engine.errors as error:
        return Checked(node.name, wrong=queries.explain(error).sentence)


def check_stripes(node: NodeSpec, streams: StreamStore) -> None:
    """Refuse a node that would read some stripes of a stream that was created here: nobody would miss the rest."""
    for names in node.together:
        whole = names[0].removesuffix(".s0")
        dealing = streams.stripes_of(whole)
        if dealing is not None and dealing.names != names:
            raise UsageError(
                f"node {node.name} reads stream {whole} with {len(names)} stripes; below {streams.root} it has "
                f"{dealing.stripes}; say app.striped({whole!r}, {dealing.stripes})"
            )


def _empty(name: str, streams: StreamStore, copies: StreamStore) -> Stream:
    """An empty stream like the one of that name."""
    try:
        return copies.open(name)
    except UnknownStream:
        like = streams.open(name).definition
        like.require_replay("a node that reads it")
        return copies.create(name, like.schema, bucket=duration_text(like.bucket_us))
