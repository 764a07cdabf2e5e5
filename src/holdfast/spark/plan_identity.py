"""What a query computes, as lines of text that are the same at every start, on every host.

Rules:
1. The text is Spark's of the analysed plan: what the user wrote, with names and types resolved, before anything was
   optimised. What depends on the session is taken out: ids of expressions are numbered anew, ids of metrics, seeds,
   views, aliases and the number of partitions go.
2. Holdfast's own part of the plan, around the source, is one line: the streams and their columns. Where they lie, how
   far they are read and how boundaries come is no part of what is computed.
3. Python functions count by their code (`fingerprint`); they have lines of their own, behind the plan.
4. Whoever changes these rules, or what Holdfast puts around the user's plan, raises `RULES`: notes of other rules are
   not compared.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyspark
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from holdfast.model.time import duration_text
from holdfast.spark.fingerprint import PYTHON, fingerprint, plain_path
from holdfast.stream.identity import Identity

RULES = 1
_FIELDS_MAX = 2**31 - 1

_ID = re.compile(r"#(\d+)(L?)")
_MARKS = re.compile(r"^((?:[:| ] {2})*)(?:[:+]- )?~?")
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}, ")
_OBJECT = re.compile(r"@[0-9a-f]{5,8}\b")
_LAMBDA = re.compile(r"\blambda (\w+?)_\d+#")
_SEED = re.compile(r"\b(rand|randn|uuid|shuffle|uniform|randstr)\(([^()]*?)(?:Some\()?-?\d{6,}\)?\)")
_PARTITIONS = re.compile(r"^(Repartition\w*(?: \[.*\])?),? \S*$")
_METRIC = re.compile(r"^(CollectMetrics .*), \d+$")
_SPAN = re.compile(r"(?<=[%+-] )(\d{4,})(?=\))")
_PLACE = re.compile(r"(?<![\w/])(?:file:)?/(?:[^\s/,\]\[]+/)+[^\s,\]\[]+")
#: Operators that only name things.
_NAMES_ONLY = ("SubqueryAlias ", "View (")


def identity(lines: Iterable[str]) -> Identity:
    """What these lines say, with whose words they say it: a text of another Spark or Python is not compared."""
    return Identity(tuple(lines), f"{pyspark.__version__}, rules {RULES}", PYTHON)


def plan_lines(frame: DataFrame, own: str = "") -> list[str]:
    """Rules 1 to 3, of a frame; `own` names the module that the user's function is from."""
    plan = frame._jdf.queryExecution().analyzed()
    return [*normalised(plan.treeString(True, False, _FIELDS_MAX, False, False)), *_functions(frame, plan, own)]


def normalised(tree: str) -> list[str]:
    """Rule 1: the lines of a plan, each indented by its depth."""
    found: list[tuple[int, str]] = []
    for line in tree.splitlines():
        if line.strip():
            marks = _MARKS.match(line)
            assert marks is not None
            found.append((len(marks[0].replace("~", "")) // 3, line[marks.end() :]))
    return _numbered(_without_names(_inputs(found)))


def _inputs(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Rule 2. The chain above the source is Holdfast's as far as `read_stream` makes it."""
    kept: list[tuple[int, str]] = []
    for depth, line in lines:
        if line.startswith("StreamingRelationV2 ") and ", holdfast, " in line:
            while kept and kept[-1][0] == depth - 1 and _is_wrapping(kept[-1][1]):
                depth, _ = kept.pop()
            kept.append((depth, _input(line)))
        else:
            kept.append((depth, line))
    return kept


def _is_wrapping(line: str) -> bool:
    return (
        line.startswith("CollectMetrics holdfast_")
        or (line.startswith("EventTimeWatermark ") and line.endswith("timestamp, 0 seconds"))
        or re.fullmatch(r"Filter NOT \(cast\(tuple_type#\d+ as int\) = \d+\)", line) is not None
    )


def _input(line: str) -> str:
    options, columns = re.findall(r"\[([^\]]*)\]", line)[-2:]
    streams = re.search(r"(?:^|, )(?:path|streams)=(.*?)(?=, \w+=|$)", options)
    return f"Input {streams[1] if streams else ''} [{columns}]"


def _without_names(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """What stands below an operator that goes takes its place."""
    gone: list[int] = []
    for depth, line in lines:
        gone = [at for at in gone if at < depth]
        if line.startswith(_NAMES_ONLY):
            gone.append(depth)
        else:
            yield depth - len(gone), _plain(line)


def _plain(line: str) -> str:
    line = _OBJECT.sub("", _UUID.sub("", line))
    line = _LAMBDA.sub(r"lambda \1#", line)
    line = _SEED.sub(r"\1(\2seed)", line)
    line = _METRIC.sub(r"\1", _PARTITIONS.sub(r"\1", line))
    line = _PLACE.sub(lambda found: plain_path(found[0]), line)
    if "precisetimestampconversion" in line:  # A window, where Spark counts in microseconds.
        line = _SPAN.sub(lambda found: duration_text(int(found[1])), line)
    return line


def _numbered(lines: Iterator[tuple[int, str]]) -> list[str]:
    numbers: dict[str, int] = {}
    counted = itertools.count(1)

    def number(found: re.Match[str]) -> str:
        if found[1] not in numbers:
            numbers[found[1]] = next(counted)
        return f"#{numbers[found[1]]}"

    return ["  " * depth + _ID.sub(number, line) for depth, line in lines]


def _functions(frame: DataFrame, plan: Any, own: str) -> list[str]:
    """Rule 3, in the order in which the plan has them."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    wanted = [getattr(patterns, name)() for name in ("PYTHON_UDF", "PYTHON_UDAF") if _has(patterns, name)]
    found: list[str] = []

    def look(node: Any) -> None:
        if not any(node.containsPattern(pattern) for pattern in wanted):
            return
        name = str(node.getClass().getName())
        if name.rpartition(".")[2] in ("PythonUDF", "PythonUDAF", "PythonUDTF"):
            found.append(f"function {node.name()}: {_code(node, own)}")
        for parts in [node.children()] if ".expressions." in name else [node.expressions(), node.children()]:
            for at in range(parts.size()):
                look(parts.apply(at))

    look(plan)
    return found


def _code(node: Any, own: str) -> str:
    """What Spark would send to its workers. It was pickled in this process a moment ago."""
    try:
        function, *_ = cloudpickle.loads(bytes(node.func().command().unsafeArray()))
    except Exception:  # A function of more than a megabyte, or one that can only be unpacked in a worker.
        return "not compared"
    return f"code {fingerprint(function, own)}"


def _has(patterns: Any, name: str) -> bool:
    try:
        getattr(patterns, name)()
        return True
    except Exception:  # What py4j raises for a name that this Spark does not have.
        return False
