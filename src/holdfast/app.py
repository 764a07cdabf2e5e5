"""What a user writes down: an application, its nodes, and the promises around each. What runs it comes later.

    app = holdfast.App("netmon", root="streams/")

    @app.node(inputs=["monitor1", "monitor2", "monitor3"], max_delay="3s", replicas=2)
    def active_sources(connections):
        return connections.groupBy(F.window("stime", "10 seconds"), "source").count()

Rules:
1. This module does not import pyspark: describing, checking and drawing a diagram is for every tool.
2. A decorated function stays what it was: it can be called and tested on plain DataFrames.
3. Text such as "3s", "process" and "fork" lives here; inside there are microseconds and enumerations.
4. A refused node changes nothing: the application is as before.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from holdfast.diagram import Application, Boundaries, Diagram, NodeSpec, Retain, check_node_name, diagram_of
from holdfast.inputs.source import EngineSource, Source, SourceSpec
from holdfast.model.errors import UsageError
from holdfast.model.schema import SchemaLike, parse_schema
from holdfast.model.time import MAX_AHEAD, duration_us, instant_us
from holdfast.protocol.dpc.plan import WARM_SHARE, Full, Policy, Stabilise
from holdfast.stream.stripes import stripe_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.engine import Engine
    from holdfast.host.embedded import Running
    from holdfast.sinks.sink import Sink, SinkSpec

__all__ = ["App", "Diagram", "NodeSpec"]

Duration = str | int | float | timedelta
PolicyName = Literal["process", "delay", "suspend"]
F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Enum)


class App(Application):
    """An application: nodes that read and produce streams. `root` is where they live when it runs in one process."""

    def __init__(self, name: str, *, root: str | os.PathLike[str] = "streams") -> None:
        self.name = check_node_name(name, "the name of an application", "choose one such as 'netmon'")
        self.root = Path(root)
        self._diagram = diagram_of(name, ())
        self._nodes: tuple[NodeSpec, ...] = ()
        self._sinks: dict[str, SinkSpec] = {}
        self._sources: dict[str, SourceSpec] = {}
        self._striped: dict[str, tuple[str, ...]] = {}

    def node(
        self,
        *,
        inputs: str | Sequence[str],
        output: str | None = None,
        outputs: Sequence[str] = (),
        name: str | None = None,
        max_delay: Duration = "3s",
        replicas: int = 1,
        blocking: Sequence[str] = (),
        during_failure: PolicyName = "process",
        during_stabilisation: PolicyName = "process",
        stabilise: Literal["fork", "stagger"] = "fork",
        convergent: Duration | None = None,
        capacity: Duration | None = None,
        full: Literal["block", "keep_last"] = "block",
        retain: Retain = "all",
        bucket: Duration | None = None,
        stime: str | Mapping[str, str] | None = None,
        begin: str | datetime | None = None,
        boundaries: Boundaries = "auto",
        output_mode: Literal["append"] = "append",
        keepalive: Duration = "100ms",
        warm: float = WARM_SHARE,
        output_schema: SchemaLike | None = None,
    ) -> Callable[[F], F]:
        """Declare the decorated function as a node; see `NodeSpec` for what each option means.

        The function takes one DataFrame with all inputs merged, or one per input, in the order of `inputs`, and returns
        one, or a flow of Holdfast's own operators (`holdfast.spark.flow_of`). The output stream is named like the node
        unless `output` says otherwise. With `outputs`, it returns a dict with a DataFrame for each of these streams;
        each is a node of its own, `name.stream`, with the same promises; `stime` may then say the column of each, as
        in `stime={"counts": "window.end", "large": "ordered_at"}`.
        """
        named = _streams("outputs", outputs)
        if named and output is not None:
            raise UsageError(f"a node has output= or outputs=; got {output!r} and {', '.join(named)}; leave one out")

        def declare(function: F) -> F:
            chosen = name if name is not None else getattr(function, "__name__", "")
            check_node_name(chosen)
            written = _streams("inputs", inputs)
            streams = self._with_stripes(written)
            parts = _parts(chosen, function, output, named)
            times = _times(chosen, stime, tuple(made for _, made, _ in parts))
            self._add(*(
                NodeSpec(
                    name=node,
                    inputs=streams,
                    output=stream,
                    function=part,
                    max_delay_us=duration_us(max_delay),
                    replicas=replicas,
                    separate=_separate(chosen, function, written),
                    together=tuple(self._striped[name] for name in written if name in self._striped),
                    blocking=self._with_stripes(_streams("blocking", blocking)),
                    during_failure=_one_of(Policy, "during_failure", during_failure),
                    during_stabilisation=_one_of(Policy, "during_stabilisation", during_stabilisation),
                    stabilise=_one_of(Stabilise, "stabilise", stabilise),
                    convergent_us=_optional_us(convergent),
                    capacity_us=_optional_us(capacity),
                    full=_one_of(Full, "full", full),
                    retain=_word("retain", retain, get_args(Retain)),
                    bucket_us=_optional_us(bucket),
                    stime=times.get(stream),
                    begin_us=None if begin is None else instant_us(begin),
                    boundaries=_word("boundaries", boundaries, get_args(Boundaries)),
                    output_mode=_word("output_mode", output_mode, ("append",)),
                    keepalive_us=duration_us(keepalive),
                    warm=warm,
                    output_schema=None if output_schema is None else parse_schema(output_schema),
                )
                for node, stream, part in parts
            ))  # fmt: skip
            return function

        return declare

    def striped(self, stream: str, stripes: int) -> None:
        """Say that a stream which nodes read has so many stripes (`StreamStore.create_striped`): nodes declared from
        now on that read it have its stripes as inputs, `stream.s0` …, each a stream with a source or a home of its own
        and a missing input while it is away. They come as one DataFrame. Another number than the stream has where it
        was created is refused at the start and by `holdfast check`."""
        names = stripe_names(stream, stripes)
        if self._striped.setdefault(stream, names) != names:
            raise UsageError(
                f"stream {stream!r} was said to have {len(self._striped[stream])} stripes; got {stripes}; a stream "
                f"keeps the number that it was created with"
            )
        if stream in self._diagram.streams or stream in self._sources:
            del self._striped[stream]
            raise UsageError(
                f"stream {stream!r} is one stream here already; say app.striped({stream!r}, {stripes}) before the "
                f"nodes that read it, and fill its stripes {', '.join(names)}"
            )

    def _with_stripes(self, streams: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for stream in streams for name in self._striped.get(stream, (stream,)))

    def _add(self, *added: NodeSpec) -> None:
        for node in added:
            if node.output in self._striped:
                raise UsageError(
                    f"node {node.name!r} must have an output with one log; got striped stream {node.output!r}; name "
                    f"another output"
                )
            if node.output in self._sources:
                raise UsageError(f"stream {node.output!r} has a source; node {node.name!r} cannot produce it as well")
        nodes = (*self._nodes, *added)
        self._diagram = diagram_of(self.name, nodes)
        self._nodes = nodes

    def source(
        self,
        stream: str,
        source: Source | Callable[[Any], Any],
        *,
        schema: SchemaLike | None = None,
        bucket: Duration | None = None,
        stime: str | None = None,
        slack: Duration = 0,
        idle: Literal["wait", "advance"] | Duration = "wait",
        trigger: Duration | None = None,
        max_ahead: Duration | None = MAX_AHEAD,
        late: Literal["refuse", "drop"] = "refuse",
        dead_letters: str | Path | Literal[True] | None = True,
    ) -> None:
        """Fill a stream from elsewhere while the application runs: from `holdfast.kafka(…)`, from
        `holdfast.postgres_changes(…)`, or from any streaming source of Spark's, `lambda spark: spark.readStream…`,
        whose column `stime` says when a row happened, with so much `slack` and no more than `max_ahead` of the clock.
        Rows of Spark's that come later, lie further ahead or have no time go to the `dead_letters`, a file beside the
        stream unless you name one; with None the first stops the source. `late="drop"` only counts late ones.
        With `schema` the stream is made if it is not there; tables and Spark's frames say theirs themselves."""
        if isinstance(source, Source):
            described: Source | EngineSource = source
            others = slack or idle != "wait" or trigger is not None or max_ahead != MAX_AHEAD
            if others or stime is not None or late != "refuse" or dead_letters is not True:
                raise UsageError(
                    f"stime, slack, idle, trigger, max_ahead, late and dead_letters of stream {stream!r} must stand in "
                    f"its description; got them here"
                )
        else:
            described = _spark_source(stream, source, stime, slack, idle, trigger, max_ahead, late, dead_letters)
        if stream in self._striped:
            raise UsageError(
                f"a striped stream has a source for each stripe; got one for {stream!r}; name one of "
                f"{', '.join(self._striped[stream])}"
            )
        if stream in self._sources:
            raise UsageError(f"stream {stream!r} must have one source; got a second; a stream has one writer")
        if (producer := self._producer_of(stream)) is not None:
            raise UsageError(f"stream {stream!r} is produced by node {producer!r}; it cannot have a source as well")
        columns = None if schema is None else parse_schema(schema)
        self._sources[stream] = SourceSpec(stream, described, columns, _optional_us(bucket))

    def _producer_of(self, stream: str) -> str | None:
        return next((node.name for node in self._nodes if node.output == stream), None)

    @property
    def sources(self) -> Mapping[str, SourceSpec]:
        """The streams that are filled from elsewhere, and how."""
        return MappingProxyType(self._sources)

    def sink(self, stream: str, sink: Sink, *, name: str | None = None, start: str | datetime = "beginning") -> None:
        """Keep a target (`holdfast.sinks`) at what a stream of the application says, corrections included.

        It runs with the application, and goes on where the target is; `start` counts for one that holds nothing yet.
        Retention waits for it under its name.
        """
        from holdfast.sinks.sink import SinkSpec  # Not for who has none: it brings all of them with it.

        chosen = check_node_name(name or f"{stream}.{sink.kind}", "the name of a sink", "give it one with name=")
        if chosen in self._sinks:
            raise UsageError(f"a sink {chosen!r} is there already; give this one another name with name=")
        self._sinks[chosen] = SinkSpec(chosen, stream, sink, start)

    @property
    def sinks(self) -> tuple[SinkSpec, ...]:
        """The sinks declared so far, of streams that the application has."""
        known = self._diagram.streams
        for spec in self._sinks.values():
            if spec.stream not in known:
                raise UsageError(
                    f"sink {spec.name!r} must take a stream of application {self.name!r}: {', '.join(known)}; got "
                    f"{spec.stream!r}"
                )
        return tuple(self._sinks.values())

    def diagram(self) -> Diagram:
        """The nodes declared so far, checked and in topological order."""
        return self._diagram

    def start(
        self,
        *,
        spark: SparkSession | None = None,
        engine: Engine | None = None,
        console: bool | int = False,
        metrics_port: int | None = None,
        **settings: str,
    ) -> Running:
        """Run every node in this process, one replica each; returns what can be watched and stopped.

        Without a session one is made, with these settings: underscores for dots, `master` for its master. With
        `console`, a page on this machine shows it live, at a port of your choice if that is a number; its address and
        token are printed. With `metrics_port`, Prometheus can ask there, from this machine, how the application does.
        """
        from holdfast.host.embedded import start

        return start(self, spark=spark, engine=engine, console=console, metrics_port=metrics_port, **settings)

    def run(
        self,
        *,
        spark: SparkSession | None = None,
        engine: Engine | None = None,
        console: bool | int = False,
        metrics_port: int | None = None,
        **settings: str,
    ) -> None:
        """Like `start`, and stay until all inputs have ended, or until interrupted."""
        from holdfast.host.embedded import run

        run(self, spark=spark, engine=engine, console=console, metrics_port=metrics_port, **settings)

    def __repr__(self) -> str:
        return f"App({self.name!r}, nodes: {', '.join(node.name for node in self._nodes) or 'none'})"


def _spark_source(
    stream: str,
    function: Callable[[Any], Any],
    stime: str | None,
    slack: Duration,
    idle: Literal["wait", "advance"] | Duration,
    trigger: Duration | None,
    max_ahead: Duration | None,
    late: Literal["refuse", "drop"],
    dead_letters: str | Path | Literal[True] | None,
) -> EngineSource:
    if not callable(function):
        raise UsageError(
            f"the source of stream {stream!r} must be a description such as holdfast.kafka(…), or a function from a "
            f"session to spark.readStream…; got {type(function).__name__}"
        )
    if stime is None:
        raise UsageError(f"the source of stream {stream!r} must say which column is its time; add stime='…'")
    if late not in ("refuse", "drop"):
        raise UsageError(f"late of the source of stream {stream!r} must be 'refuse' or 'drop'; got {late!r}")
    idle_us = None if idle == "wait" else 0 if idle == "advance" else duration_us(idle)
    letters = dead_letters if dead_letters is None or dead_letters is True else Path(dead_letters)
    return EngineSource(
        function, stime, duration_us(slack), idle_us, _optional_us(trigger), _optional_us(max_ahead), late, letters
    )


def _parts(
    name: str, function: Callable[..., Any], output: str | None, outputs: tuple[str, ...]
) -> list[tuple[str, str, Callable[..., Any]]]:
    """The nodes that a declaration stands for: name, output and function of each."""
    if not outputs:
        return [(name, name if output is None else output, function)]
    return [(f"{name}.{stream}", stream, _one_output(name, function, outputs, stream)) for stream in outputs]


def _times(name: str, stime: str | Mapping[str, str] | None, outputs: tuple[str, ...]) -> dict[str, str]:
    """The column that gives each output its time, where one is named."""
    if stime is None or isinstance(stime, str):
        return {} if stime is None else dict.fromkeys(outputs, stime)
    if not isinstance(stime, Mapping) or not all(isinstance(column, str) for column in stime.values()):
        raise UsageError(
            f"stime of node {name!r} must be a column, or a column for each output such as {{{outputs[0]!r}: "
            f"'window.end'}}; got {stime!r}"
        )
    if strange := [str(output) for output in stime if output not in outputs]:
        raise UsageError(
            f"stime of node {name!r} must name its outputs {', '.join(outputs)}; got {', '.join(strange)}; correct the "
            f"name"
        )
    return dict(stime)


def _one_output(name: str, function: Callable[..., Any], outputs: tuple[str, ...], stream: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def part(*frames: Any) -> Any:
        results = function(*frames)
        if not isinstance(results, dict) or sorted(results) != sorted(outputs):
            got = f"one with {', '.join(map(str, results))}" if isinstance(results, dict) else type(results).__name__
            raise UsageError(
                f"the function of node {name!r} must return a dict with a DataFrame for each of {', '.join(outputs)}; "
                f"got {got}"
            )
        return results[stream]

    return part


def _separate(name: str, function: Callable[..., Any], inputs: tuple[str, ...]) -> bool:
    """Whether the function wants its inputs apart, as its parameters say."""
    if not callable(function):
        raise UsageError(f"node {name!r} must be a function; got {type(function).__name__}")
    parameters = list(inspect.signature(function).parameters.values())
    plain = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if not plain or len(parameters) not in (1, len(inputs)):
        many = "" if len(inputs) == 1 else f", or {len(inputs)}, one for each of {', '.join(inputs)}"
        got = ", ".join(map(str, parameters)) or "none"
        raise UsageError(f"the function of node {name!r} must take one parameter, the merged inputs{many}; got {got}")
    said = tuple(p.name for p in parameters)
    if len(said) > 1 and said != inputs and sorted(said) == sorted(inputs):
        raise UsageError(
            f"the parameters of node {name!r} must stand in the order of its inputs {', '.join(inputs)}; got "
            f"{', '.join(said)}; change one of the two"
        )
    return len(said) > 1


def _streams(what: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several: a single text is one name, not its letters."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Sequence):
        raise UsageError(f"{what} must be a list of stream names; got {given!r}")
    return tuple(given)


def _one_of(kind: type[E], what: str, value: str) -> E:
    return kind(_word(what, value, tuple(member.value for member in kind)))


W = TypeVar("W", bound=str)


def _word(what: str, value: W, allowed: tuple[str, ...]) -> W:
    if value not in allowed:
        raise UsageError(f"{what} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
    return value


def _optional_us(value: Duration | None) -> int | None:
    return None if value is None else duration_us(value)
