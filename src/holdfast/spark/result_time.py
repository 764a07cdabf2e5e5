"""How far the time that a query gives a result lies before its event time, at least and at most.

Rules:
1. The expression of the column is followed down to a column with event time. That column, and the end of a window, have
   the result's own time. The start of a window is older by its length, a time that is cut down (`date_trunc`, a date)
   by at most its unit, and one less an interval by that.
2. Of what is not known here (a function of the user's, a time in the data) it is said before it runs that it is not;
   where such a time lies below a boundary, the sink says it.
3. The start of a session may lie back as far as it likes, so no boundary could follow it: it is refused.
4. A time that an aggregation picks from its rows (`min("stime")`, `max_by("stime", …)`) may lie as far back as its
   window is long, and by the reach of a join in front of it as well. Where groups have no length that is known (those
   of a session), it is refused.
5. A union has the oldest times of its parts.
6. A row that a join keeps for ever, since its condition does not bound how long a partner may be waited for, gives its
   pair a time that is as old as it likes: it is refused, and so is a window of it, from which Spark would drop it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from holdfast.model.errors import UsageError
from holdfast.model.time import SECOND_US
from holdfast.spark.plan_tree import each, kind_of, nodes, window_step_us, window_us
from holdfast.spark.time_column import DELAY

_HOUR_US = 3_600 * SECOND_US
_DAY_US = 24 * _HOUR_US
#: More than any time may lie back that is known.
_EVER_US = 1 << 62
#: What `date_trunc` cuts off at most. A day may have 25 hours.
_UNITS_US = {
    "MICROSECOND": 0, "MILLISECOND": 1_000, "SECOND": SECOND_US, "MINUTE": 60 * SECOND_US, "HOUR": _HOUR_US,
    "DAY": _DAY_US + _HOUR_US, "DD": _DAY_US + _HOUR_US, "WEEK": 7 * _DAY_US + _HOUR_US,
    "MONTH": 31 * _DAY_US + _HOUR_US, "MON": 31 * _DAY_US + _HOUR_US, "MM": 31 * _DAY_US + _HOUR_US,
    "QUARTER": 92 * _DAY_US + _HOUR_US, "YEAR": 366 * _DAY_US + _HOUR_US, "YYYY": 366 * _DAY_US + _HOUR_US,
    "YY": 366 * _DAY_US + _HOUR_US,
}  # fmt: skip
#: Aggregate functions that give back something that a row has, or all of it as a list.
_PICKS = ("Min", "Max", "MinBy", "MaxBy", "First", "Last", "AnyValue", "Mode", "CollectList", "CollectSet",
          "PivotFirst")  # fmt: skip
#: Functions of a list, whose first argument it is, that give back an element of it, or it in another order.
_OF_LISTS = ("ArrayMin", "ArrayMax", "GetArrayItem", "ElementAt", "SortArray", "ArraySort", "ArrayDistinct", "Reverse")
_SAME = ("Alias", "KnownNullable", "PreciseTimestampConversion")
#: What a cast from these types has cut off.
_CAST_US = {"timestamp": 0, "timestamp_ntz": 0, "date": _UNITS_US["DAY"]}


class Older(NamedTuple):
    """How far a time lies before the event time."""

    us_min: int
    """Less than nothing if it lies behind it."""
    us_max: int
    step_us: int = 0
    """It is always a multiple of this, as the ends of windows are; 0: it may be any time."""


_NOT, _EVER = Older(0, 0), Older(0, _EVER_US)


def older(analysed: Any, path: tuple[str, ...], whose: str, lag_us: int, waiting: Set[int]) -> Older | None:
    """Of the results of an analysed plan whose column `path` is their stime; None where it is not known. `lag_us`: how
    far apart rows may lie that its joins pair, at most. `waiting`: ids of times of rows that a join keeps for ever."""
    column = next(a for a in each(analysed.output()) if a.name() == path[0])
    found = _Times(analysed, whose, lag_us, waiting).at(column, path[1:])
    if found is not None and found.us_max >= _EVER_US // 2:  # Something may have been added to it or taken off.
        raise UsageError(
            f"{whose} must give results a time that advances; got that of a row which may wait for its partner as long "
            f"as it likes; bound the join from both sides (r.stime between l.stime - interval 5 seconds and l.stime + "
            f"interval 5 seconds), or let greatest(l.stime, r.stime) be stime"
        )
    return found


class _Times:
    """Rule 1, for the expressions of one plan."""

    def __init__(self, analysed: Any, whose: str, lag_us: int, waiting: Set[int]) -> None:
        self._whose, self._lag_us, self._waiting = whose, lag_us, waiting
        self._named: dict[int, Any] = {}
        self._windows: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        #: Windows of rows that a join keeps for ever.
        self._endless: set[int] = set()
        #: What a union puts below the first part's column: it goes on under the name of that.
        self._united: dict[int, list[Any]] = {}
        #: Where each aggregate function stands.
        self._aggregations: dict[int, Any] = {}
        for node in nodes(analysed):
            length = window_us(node)
            for expression in each(node.expressions()):
                if kind_of(expression) == "Alias":
                    self._named[expression.exprId().id()] = expression.child()
                if kind_of(node) == "Aggregate":
                    found = (part for part in nodes(expression) if kind_of(part) == "AggregateExpression")
                    self._aggregations |= {part.resultId().id(): node for part in found}
            if kind_of(node) == "Union":
                first, *others = (list(each(child.output())) for child in each(node.children()))
                for attributes in others:
                    for attribute, other in zip(first, attributes, strict=True):
                        if (id := attribute.exprId().id()) != other.exprId().id():
                            self._united.setdefault(id, []).append(other)
            if length is not None:
                below = {a.exprId().id() for child in each(node.children()) for a in each(child.output())}
                made = {a.exprId().id() for a in each(node.output())} - below
                self._windows |= dict.fromkeys(made, length)
                self._steps |= dict.fromkeys(made, window_step_us(node))
                if waiting and self._is_of_waiting(node):
                    self._endless |= made

    def _is_of_waiting(self, windows: Any) -> bool:
        """Whether a node of the plan makes windows of rows that a join keeps for ever."""
        parts = (part for expression in each(windows.expressions()) for part in nodes(expression))
        structs = (part for part in parts if kind_of(part) == "CreateNamedStruct")
        return any(a.exprId().id() in self._waiting for struct in structs for a in each(struct.references().toSeq()))

    def at(self, part: Any, path: tuple[str, ...]) -> Older | None:
        """Of what is found in a value by the names of fields."""
        return self.field(part, path) if path else self.of(part)

    def of(self, part: Any) -> Older | None:
        kind = kind_of(part)
        if kind == "AttributeReference":
            return self._attribute(part)
        if kind in _SAME:
            return self.of(part.child())
        if kind == "AggregateExpression":
            return self._picked(part, ())
        if kind in _OF_LISTS:
            return self.of(part.children().apply(0))
        if kind == "Cast":
            return _cut(self.of(part.child()), _CAST_US.get(str(part.child().dataType().typeName())))
        if kind == "GetStructField":
            return self.field(part.child(), (str(part.extractFieldName()),))
        if kind == "TruncTimestamp":
            unit = str(part.format().value()).upper() if _literal(part.format()) else ""
            return _cut(self.of(part.timestamp()), _UNITS_US.get(unit))
        if kind == "Subtract" and kind_of(part.left()) == "PreciseTimestampConversion":
            # `window_time`: the last instant before the end of a window. No watermark lies between the two.
            last = self.of(part.left())
            return None if last is None else last._replace(step_us=0)
        if kind in ("DatetimeSub", "TimestampAddInterval"):
            return self._moved(part, kind)
        if kind == "Greatest":
            known = [time for child in each(part.children()) if (time := self.of(child)) is not None]
            return Older(min(time.us_min for time in known), min(time.us_max for time in known)) if known else None
        if kind in ("Least", "Coalesce", "If", "CaseWhen"):
            times = [child for child in each(part.children()) if child.dataType().typeName() != "boolean"]
            chosen = [self.of(child) for child in times if not _null(child)]
            return None if None in chosen else _one_of(chosen)
        return None

    def field(self, struct: Any, path: tuple[str, ...]) -> Older | None:
        """A field of a window, or of another struct, also of one within it."""
        kind = kind_of(struct)
        if kind in _SAME:
            return self.field(struct.child(), path)
        if kind == "AttributeReference":
            return self._field_of_attribute(struct, path)
        if kind == "AggregateExpression":
            return self._picked(struct, path)
        if kind == "GetStructField":
            return self.field(struct.child(), (str(struct.extractFieldName()), *path))
        if kind in _OF_LISTS:
            return self.field(struct.children().apply(0), path)
        if kind == "CreateNamedStruct":
            values = dict(zip(map(str, each(struct.names())), each(struct.valExprs()), strict=True))
            return self.at(values[path[0]], path[1:]) if path[0] in values else None
        return None

    def _field_of_attribute(self, struct: Any, path: tuple[str, ...]) -> Older | None:
        id = struct.exprId().id()
        if path[0] == "start" and _is_session(struct):
            raise UsageError(
                f"{self._whose} must give results a time that advances; got the start of a session, which may "
                f"lie back as far as it likes; use its end (session_window, or session_window.end)"
            )
        if id in self._endless:
            return _EVER
        own = None
        if id in self._windows:
            length = self._windows[id] if path[0] == "start" else 0
            own = Older(length, length, self._steps[id])
        elif id in self._named:
            own = self.field(self._named[id], path)
        return self._united_with(own, id, path)

    def _united_with(self, own: Older | None, id: int, path: tuple[str, ...]) -> Older | None:
        """Rule 5: of a column that goes on through a union, with what its other parts have there."""
        # Below the union the column is that of its first part alone, of which others may be made, too.
        united = self._united.pop(id, [])
        found = [own, *(self.at(other, path) for other in united)]
        self._united[id] = united
        return _one_of(found)

    def _picked(self, aggregate: Any, path: tuple[str, ...]) -> Older | None:
        """Rule 4: what an aggregate function takes from the rows of its group."""
        function = aggregate.aggregateFunction()
        if kind_of(function) not in _PICKS:
            return None
        value = function.valueColumn() if kind_of(function) == "PivotFirst" else function.children().apply(0)
        row = self.at(value, path)
        return _cut(row, self._group_us(self._aggregations[aggregate.resultId().id()], aggregate))

    def _group_us(self, aggregation: Any, aggregate: Any) -> int:
        """How far the rows of a group may lie before its time: a window's length, if it is made for this aggregation
        and not for one in front of it, and the reach of joins."""
        keys = [key for key in each(aggregation.groupingExpressions()) if kind_of(key) == "AttributeReference"]
        times = [key for key in keys if key.metadata().contains(DELAY)]
        if not times or any(_is_session(key) for key in times):
            raise UsageError(
                f"{self._whose} must give results a time that advances; got {aggregate.sql()} over "
                f"{'a session' if times else 'groups without a window'}, which may lie back as far as it likes; let "
                f"the end of the session or window give the time: give this column another name than stime, or name "
                f"that one (stime='session_window')"
            )
        earlier, reach_us, below = set[int](), 0, [aggregation.child()]
        while below:
            node = below.pop()
            if kind_of(node) == "Aggregate":
                earlier.update(a.exprId().id() for a in each(node.output()))
                continue
            reach_us = self._lag_us if kind_of(node) == "Join" else reach_us
            below += each(node.children())
        made = [id for key in times if (id := self._window(key.exprId().id())) not in earlier]
        return max((self._windows.get(id, 0) for id in made), default=0) + reach_us

    def _window(self, id: int) -> int:
        """Of a column that is another one under a new name, that one."""
        while id not in self._windows and id in self._named and kind_of(self._named[id]) == "AttributeReference":
            id = self._named[id].exprId().id()
        return id

    def _attribute(self, part: Any) -> Older | None:
        id = part.exprId().id()
        if id in self._waiting:
            return _EVER
        own = self.of(self._named[id]) if id in self._named else None
        if own is None and part.metadata().contains(DELAY):
            own = _NOT
        return self._united_with(own, id, ())

    def _moved(self, part: Any, kind: str) -> Older | None:
        """A time and an interval, as Spark has it before it optimises."""
        start, interval = part.start(), part.interval()
        sign = 1 if kind == "DatetimeSub" else -1
        if kind_of(interval) == "UnaryMinus":
            interval, sign = interval.child(), -sign
        if not _literal(interval):
            return None
        value = interval.value()
        if isinstance(value, int):  # A day-time interval.
            return _moved_by(self.of(start), sign * value)
        days = value.days() if hasattr(value, "days") else 0
        return None if value.months() else _moved_by(self.of(start), sign * (days * _DAY_US + value.microseconds()))


def _is_session(attribute: Any) -> bool:
    return bool(attribute.metadata().contains("spark.sessionWindow"))


def _literal(part: Any) -> bool:
    return kind_of(part) == "Literal" and part.value() is not None


def _null(part: Any) -> bool:
    while kind_of(part) == "Cast":
        part = part.child()
    return kind_of(part) == "Literal" and part.value() is None


def _moved_by(time: Older | None, us: int) -> Older | None:
    """It less an interval."""
    if time is None:
        return None
    return Older(time.us_min + us, time.us_max + us, math.gcd(time.step_us, us) if time.step_us else 0)


def _cut(time: Older | None, us_max: int | None) -> Older | None:
    """It less any time up to this; None: as much as one likes."""
    if time is None or us_max is None:
        return None
    return Older(time.us_min, time.us_max + us_max) if us_max else time


def _one_of(times: Iterable[Older | None]) -> Older | None:
    """Any of them, as far as they are known."""
    known = [time for time in times if time is not None]
    if not known:
        return None
    step_us = math.gcd(*(time.step_us for time in known)) if all(time.step_us for time in known) else 0
    return Older(min(time.us_min for time in known), max(time.us_max for time in known), step_us)
