"""What a query computes, as lines of text that are the same at every start, on every host.

Rules:
1. The text is Spark's of the analysed plan: what the user wrote, with names and types resolved, before anything was
   optimised. What depends on the session is taken out: ids of expressions are numbered anew, ids of metrics, seeds,
   views, aliases and the number of partitions go.
2. Holdfast's own part of the plan, around the source, is one line: the streams and their columns. Where they lie, how
   far they are read and how boundaries come is no part of what is computed. Nor is the note of a watermark's delay.
3. Python functions, those that give tables as well, count by their code (`fingerprint`), functions of SQL by their
   text; they have lines of their own, behind the plan, which has no more than their names.
4. Texts of the user's that look like what rule 1 takes out ("ticket #12") have lines of their own, too.
5. So have tables: files by their names and how many bytes they are together, rows of the program by what they are. What
   is in a file is not looked at.
6. Settings of the session by which the same plan gives other results have one line.
7. Of a changed plan the state fits if operators with state, their keys and functions, and windows are what they were.
   What stands before and behind them may change: open windows then hold what both have counted. A key is what makes
   it, too: the columns that it comes from, as far down as they are computed, and the code of functions there.
8. Whoever changes these rules, or what Holdfast puts around the user's plan, raises `RULES`: notes of other rules are
   not compared.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyspark
from pyspark.sql import DataFrame, SparkSession

from holdfast.model.time import duration_text
from holdfast.spark.event_time import WITHIN_ALIAS
from holdfast.spark.fingerprint import PYTHON, fingerprint, plain_path
from holdfast.spark.plan_tree import each, python_function
from holdfast.stream.identity import Identity, differences

RULES = 4
_FIELDS_MAX = 2**31 - 1
#: Rows of a table in the program that are looked at.
_ROWS_MAX = 10_000
_DIGITS = 16
#: Patterns of expressions that have a function of the user's somewhere inside.
_WITH_FUNCTIONS = ("PYTHON_UDF", "PYTHON_UDAF", "SQL_SCALAR_FUNCTION")
#: By these, casts, overflows and days are computed in another way.
_SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.session.timeZone")

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
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
#: Operators with state, and those whose state is the user's; what is said of the node as a whole.
_STATE_OPERATORS = ("Aggregate ", "Join ", "Deduplicate", "EventTimeWatermark ", "GlobalLimit", "Distinct")
_STATE_FUNCTIONS = ("FlatMapGroups", "TransformWithState")
#: Operators with state that have keys.
_KEYED = ("Aggregate ", "Deduplicate", "Distinct", *_STATE_FUNCTIONS)
_HEAD = re.compile(r"(inputs|output bucket|stime|boundaries|settings): ")
_NAME = re.compile(r"([^\s,()\[\]]+)#\d+")
_SPAN_TEXT = re.compile(r"[%+-] (\d\w*)\)")
#: Operators that only name things.
_NAMES_ONLY = ("SubqueryAlias ", "View (")


def identity(lines: Iterable[str], inputs: dict[str, str] | None = None) -> Identity:
    """What these lines say, with whose words they say it: a text of another Spark or Python is not compared. `inputs`
    are the ids of streams by their names."""
    return Identity(tuple(lines), f"{pyspark.__version__}, rules {RULES}", PYTHON, inputs or {})


def plan_lines(frame: DataFrame, own: str = "", *, tables: bool = True) -> list[str]:
    """Rules 1 to 5, of a frame; `own` names the module that the user's function is from. To look into `tables` takes a
    job."""
    plan = frame._jdf.queryExecution().analyzed()
    return [*normalised(plan.treeString(True, False, _FIELDS_MAX, False, False)), *_beside(frame, plan, own, tables)]


def settings_line(spark: SparkSession) -> str:
    """Rule 6."""
    return f"settings: {', '.join(f'{name} = {spark.conf.get(name)}' for name in _SETTINGS)}"


def state_differences(before: Identity, now: Identity) -> list[str]:
    """What of a plan has changed that the state depends on (rule 7); empty: the state fits the new one."""
    old, new = (msgspec.structs.replace(one, lines=tuple(_state_lines(one.lines))) for one in (before, now))
    return differences(old, new)


def _state_lines(lines: Sequence[str]) -> Iterator[str]:
    owns_state = any(line.strip().startswith(_STATE_FUNCTIONS) for line in lines)
    join: int | None = None
    for whole in lines:
        line, depth = whole.strip(), len(whole) - len(whole.lstrip())
        join = None if join is not None and depth <= join else join
        if line.startswith(("columns: ", "function ")):
            if line.startswith("function ") and owns_state:
                yield line
        elif (
            line.startswith((*_STATE_OPERATORS, *_STATE_FUNCTIONS))
            or _HEAD.match(line)
            or "session_window" in line
            or join is not None  # It keeps whole rows of what stands below it.
        ):
            join = depth if join is None and line.startswith("Join ") else join
            yield _ID.sub("", line)
        elif "precisetimestampconversion" in line:
            yield f"window of {', '.join(_SPAN_TEXT.findall(line))}"
    yield from _key_lines(lines)


def _key_lines(lines: Sequence[str]) -> Iterator[str]:
    """What makes the keys of operators with state, below those. By name, since ids are others below a union: a column
    too many may count in this way, and none too few."""
    names: set[str] = set()
    made_of: list[str] = []
    top: int | None = None
    for at, whole in enumerate(lines):
        line, depth = whole.strip(), len(whole) - len(whole.lstrip())
        if top is not None and depth <= top:
            names, top = set(), None
        if line.startswith(_KEYED):
            top = depth if top is None else top
            keys = "".join(lines[at + 1 : at + 2]) if line.startswith("Distinct") else _keys_in(line)
            names.update(_NAME.findall(keys))
            made_of.append(keys)
        elif top is not None and line.startswith(("Project ", "Generate ")):
            for column in _computed(line, names):
                names.update(_NAME.findall(column))
                made_of.append(column)
                if "precisetimestampconversion" not in column:  # Else a window, of which all is said above.
                    yield f"key {_ID.sub('', column)}"
        elif line.startswith("function ") and any(f"{line[9:].partition(': ')[0]}(" in text for text in made_of):
            yield line


def _keys_in(line: str) -> str:
    """Of an operator with state: its first list. The user's functions get whole rows, of which keys are a part."""
    return line if line.startswith(_STATE_FUNCTIONS) else _parts(line.partition("[")[2])[0]


def _computed(line: str, names: set[str]) -> list[str]:
    """The columns of these names that are computed here."""
    if line.startswith("Generate "):
        return [line] if names.intersection(_NAME.findall(line.rpartition("[")[2])) else []
    columns = _parts(line.partition("[")[2], ", ")
    return [column for column in columns if " AS " in column and names.intersection(_NAME.findall(column)[-1:])]


def _parts(text: str, between: str = "") -> list[str]:
    """A list without its opening bracket, up to the closing one: its members, or without `between` the whole. Texts of
    the user's stand in a plan without quotes: brackets in them may leave more together than belongs together."""
    found: list[str] = []
    depth = begun = 0
    for at, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
            if depth < 0:
                return [*found, text[begun:at]]
        elif between and not depth and text.startswith(between, at):
            found.append(text[begun:at])
            begun = at + len(between)
    return [*found, text[begun:]]


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
    for (depth, line), (_, below) in itertools.pairwise([*lines, (0, "")]):
        gone = [at for at in gone if at < depth]
        if line.startswith(_NAMES_ONLY) or below == f"SubqueryAlias {WITHIN_ALIAS}":
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


def _beside(frame: DataFrame, plan: Any, own: str, tables: bool) -> list[str]:
    """Rules 3 to 5: what the text of a plan does not say, in the order in which the plan has it."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    wanted = [getattr(patterns, name)() for name in _WITH_FUNCTIONS if _has(patterns, name)]
    found: list[str] = []

    def look(node: Any) -> None:
        kind = _kind(node)
        if tables:
            found.extend(_table(frame, node, kind))
        if kind == "Generate" and _kind(node.generator()) == "PythonUDTF":
            found.append(_python_function(node.generator(), node.generator().elementSchema(), own))
        for expression in each(node.expressions()):
            found.extend(_texts(expression))
            look_inside(expression)
        for inner in (*each(node.children()), *each(node.subqueries())):
            look(inner)

    def look_inside(expression: Any) -> None:
        if not any(expression.containsPattern(pattern) for pattern in wanted):
            return
        kind = _kind(expression)
        if kind in ("PythonUDF", "PythonUDAF"):
            found.append(_python_function(expression, expression.dataType(), own))
        elif kind == "SQLScalarFunction":
            function = expression.function()
            body = " ".join(str(function.exprText().getOrElse(None) or function.queryText().get()).split())
            found.append(f"function {function.name().unquotedString()}: {expression.dataType().simpleString()}, {body}")
        for inner in each(expression.children()):
            look_inside(inner)

    look(plan)
    return found


def _kind(node: Any) -> str:
    return str(node.getClass().getName()).rpartition(".")[2]


def _python_function(expression: Any, gives: Any, own: str) -> str:
    kind = f"{gives.simpleString()}, kind {expression.evalType()}"
    return f"function {expression.name()}: {kind}, {_code(expression, own)}"


def _texts(expression: Any) -> Iterator[str]:
    """Rule 4. Spark's SQL has texts in quotes, and columns by their names alone."""
    try:
        sql = str(expression.sql())
    except Exception:  # Not every expression has a text in SQL.
        return
    for text in _QUOTED.findall(sql):
        if any(pattern.search(text) for pattern in (_ID, _UUID, _OBJECT)):
            yield f"text {text}"


def _table(frame: DataFrame, node: Any, kind: str) -> Iterator[str]:
    """Rule 5."""
    try:
        if kind == "LogicalRelation":
            location = node.relation().location()
            names = sorted(str(path.getName()) for path in each(location.rootPaths()))
            yield f"table {', '.join(names)}: {location.sizeInBytes()} bytes"
        elif kind in ("LocalRelation", "LogicalRDD") and not node.isStreaming():
            session = frame.sparkSession
            assert session._jvm is not None
            rows = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, node)
            held = repr(DataFrame(rows, session).limit(_ROWS_MAX).collect())
            yield f"table in the program: code {hashlib.sha256(held.encode()).hexdigest()[:_DIGITS]}"
    except Exception:  # A relation of another kind, which says for itself what it is, or one that cannot be read now.
        return


def _code(node: Any, own: str) -> str:
    """What Spark would send to its workers."""
    function = python_function(node)
    # None: a function of more than a megabyte, or one that can only be unpacked in a worker.
    return "not compared" if function is None else f"code {fingerprint(function, own)}"


def _has(patterns: Any, name: str) -> bool:
    try:
        getattr(patterns, name)()
        return True
    except Exception:  # What py4j raises for a name that this Spark does not have.
        return False
