"""How far the time that a query gives a result may lie before its event time.

Rules:
1. The expression of the column is followed down to a column with event time. That column, and the end of a window, have
   the result's own time. The start of a window is older by its length, a time that is cut down (`date_trunc`, a date)
   by at most its unit, and one less an interval by that.
2. Of what is not known here (a function of the user's, a time in the data) nothing is said; where such a time lies
   below a boundary, the sink says it.
3. The start of a session may lie back as far as it likes, so no boundary could follow it: it is refused.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import UsageError
from holdfast.model.time import SECOND_US
from holdfast.spark.plan_tree import each, kind_of, nodes, window_us
from holdfast.spark.time_column import DELAY

_HOUR_US = 3_600 * SECOND_US
_DAY_US = 24 * _HOUR_US
#: What `date_trunc` cuts off at most. A day may have 25 hours.
_UNITS_US = {
    "MICROSECOND": 0, "MILLISECOND": 1_000, "SECOND": SECOND_US, "MINUTE": 60 * SECOND_US, "HOUR": _HOUR_US,
    "DAY": _DAY_US + _HOUR_US, "DD": _DAY_US + _HOUR_US, "WEEK": 7 * _DAY_US + _HOUR_US,
    "MONTH": 31 * _DAY_US + _HOUR_US, "MON": 31 * _DAY_US + _HOUR_US, "MM": 31 * _DAY_US + _HOUR_US,
    "QUARTER": 92 * _DAY_US + _HOUR_US, "YEAR": 366 * _DAY_US + _HOUR_US, "YYYY": 366 * _DAY_US + _HOUR_US,
    "YY": 366 * _DAY_US + _HOUR_US,
}  # fmt: skip
_SAME = ("Alias", "KnownNullable", "PreciseTimestampConversion")
#: What a cast from these types has cut off.
_CAST_US = {"timestamp": 0, "timestamp_ntz": 0, "date": _UNITS_US["DAY"]}


def older_us(analysed: Any, path: tuple[str, ...], whose: str) -> int:
    """Of the results of an analysed plan whose column `path` is their stime; 0 where it is not known."""
    column = next(a for a in each(analysed.output()) if a.name() == path[0])
    times = _Times(analysed, whose)
    found = times.field(column, path[1]) if len(path) > 1 else times.of(column)
    return max(0, found or 0)


class _Times:
    """Rule 1, for the expressions of one plan."""

    def __init__(self, analysed: Any, whose: str) -> None:
        self._whose = whose
        self._named: dict[int, Any] = {}
        self._windows: dict[int, int] = {}
        for node in nodes(analysed):
            length = window_us(node)
            for expression in each(node.expressions()):
                if kind_of(expression) == "Alias":
                    self._named[expression.exprId().id()] = expression.child()
            if length is not None:
                below = {a.exprId().id() for child in each(node.children()) for a in each(child.output())}
                made = (a.exprId().id() for a in each(node.output()))
                self._windows |= {id: length for id in made if id not in below}

    def of(self, part: Any) -> int | None:
        kind = kind_of(part)
        if kind == "AttributeReference":
            return self._attribute(part)
        if kind in _SAME:
            return self.of(part.child())
        if kind == "Cast":
            return _plus(self.of(part.child()), _CAST_US.get(str(part.child().dataType().typeName())))
        if kind == "GetStructField":
            return self.field(part.child(), str(part.extractFieldName()))
        if kind == "TruncTimestamp":
            unit = str(part.format().value()).upper() if _literal(part.format()) else ""
            return _plus(self.of(part.timestamp()), _UNITS_US.get(unit))
        if kind == "Subtract" and kind_of(part.left()) == "PreciseTimestampConversion":
            # `window_time`: the last instant before the end of a window. No watermark lies between the two.
            return self.of(part.left())
        if kind in ("DatetimeSub", "TimestampAddInterval"):
            return self._moved(part, kind)
        if kind == "Greatest":
            return min((us for child in each(part.children()) if (us := self.of(child)) is not None), default=None)
        if kind in ("Least", "Coalesce"):
            found = [self.of(child) for child in each(part.children())]
            return None if None in found else max(us for us in found if us is not None)
        return None

    def field(self, struct: Any, name: str) -> int | None:
        """A field of a window, or of another struct, of which nothing is known."""
        while kind_of(struct) in ("Alias", "AttributeReference"):
            if kind_of(struct) == "AttributeReference":
                id = struct.exprId().id()
                if name == "start" and struct.metadata().contains("spark.sessionWindow"):
                    raise UsageError(
                        f"{self._whose} must give results a time that advances; got the start of a session, which may "
                        f"lie back as far as it likes; use its end (session_window, or session_window.end)"
                    )
                if id in self._windows:
                    return self._windows[id] if name == "start" else 0
                if id not in self._named:
                    return None
                struct = self._named[id]
            else:
                struct = struct.child()
        return None

    def _attribute(self, part: Any) -> int | None:
        named = self._named.get(part.exprId().id())
        if named is not None and (us := self.of(named)) is not None:
            return us
        return 0 if part.metadata().contains(DELAY) else None

    def _moved(self, part: Any, kind: str) -> int | None:
        """A time and an interval, as Spark has it before it optimises."""
        start, interval = part.start(), part.interval()
        sign = 1 if kind == "DatetimeSub" else -1
        if kind_of(interval) == "UnaryMinus":
            interval, sign = interval.child(), -sign
        if not _literal(interval):
            return None
        value = interval.value()
        if isinstance(value, int):  # A day-time interval.
            return _plus(self.of(start), sign * value)
        days = value.days() if hasattr(value, "days") else 0
        return None if value.months() else _plus(self.of(start), sign * (days * _DAY_US + value.microseconds()))


def _literal(part: Any) -> bool:
    return kind_of(part) == "Literal" and part.value() is not None


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
