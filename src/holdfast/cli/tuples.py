"""Tuples on the terminal: a line each, coloured by what they say; or a JSON object each."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from holdfast.cli.session import Session
from holdfast.model.time import instant_text
from holdfast.model.tuples import TupleType
from holdfast.stream.subscriber import Row
from holdfast.stream.worth import Worth

#: Stable is certain, tentative may change, UNDO and REC_DONE take back and close.
COLOURS = {TupleType.INSERTION: "32", TupleType.TENTATIVE: "33", TupleType.BOUNDARY: "2", TupleType.UNDO: "31",
           TupleType.REC_DONE: "31"}  # fmt: skip
#: A control character in somebody's data must not move the cursor or rename the window of whoever looks at it.
_SAFE = {i: f"\\x{i:02x}" for i in (*range(32), 127, *range(128, 160))}


class Printer:
    """Writes rows to standard output."""

    def __init__(self, session: Session) -> None:
        self._json, self._colour = session.json, session.out.is_terminal and not session.out.no_color
        self._out = sys.stdout

    def show(self, row: Row, worth: Worth | None = None) -> None:
        if self._json:
            stime = None if row.stime is None else instant_text(_us(row))
            said = {"type": row.type.name, "id": row.id, "stime": stime, "values": row.values}
            if worth is not None:
                said |= {"worth": worth.worth, "least": worth.least, "missing": worth.missing}
                said |= {"inputs": worth.inputs} if worth.inputs else {}
            self._out.write(msgspec.json.encode(said).decode() + "\n")
            return
        text = self.text(row)
        if worth is not None:
            text += f"  ({_worth(worth)})"
        self._out.write(f"\x1b[{COLOURS[row.type]}m{text}\x1b[0m\n" if self._colour else text + "\n")

    def text(self, row: Row) -> str:
        when = "-" if row.stime is None else instant_text(_us(row))
        number = f"#{row.id}" if row.type is not TupleType.BOUNDARY and row.type is not TupleType.REC_DONE else ""
        values = "  ".join(f"{name}={_value(value)}" for name, value in row.values.items())
        return f"{when:<27}  {row.type.name:<9}  {number:<8} {values}".rstrip()

    def flush(self) -> None:
        self._out.flush()


def _worth(worth: Worth) -> str:
    """The mean over what the results cover, the least where it differs, and what is missing or what went in."""
    text = f"worth {worth.worth:.0%}"
    if worth.least is not None and worth.least < worth.worth:
        text += f", at least {worth.least:.0%}"
    if worth.missing:
        return f"{text}, without {', '.join(worth.missing)}"
    return f"{text}: {', '.join(worth.inputs)}" if worth.inputs else text


def _us(row: Row) -> int:
    from holdfast.model.time import instant_us

    assert row.stime is not None
    return instant_us(row.stime)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value.translate(_SAFE)
    return msgspec.json.encode(value).decode().strip('"').translate(_SAFE)
