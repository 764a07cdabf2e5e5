"""What the state of a user-defined operator was made by: noted with the state, in scratch and in the store (C12).

Rules:
1. The name of the class, the key and its type, the time that it goes by, and the columns of its results count; of a
   join and a barrier, their inputs and windows; of a `functools.partial`, what it is given. Policy, store and number of
   partitions do not.
2. The code of a class does not count: its own `restore` reads what it saved. A function has none, be it a functor's or
   one that makes the instances: its code counts as that of a node's functions does (`holdfast.spark.fingerprint`),
   between equal versions of Python. Classes of operators that it names count by their names there, too.
3. The note is a mark of each save, so it lies with the state wherever that goes. A state of before there were notes has
   none, and one of before the code of functions counted has only their names: it is taken, and noted with the next
   save.
4. Inside a node the note of the node decides, for which `holdfast upgrade` has the answers. Outside, who knows that the
   state fits says so where the operator is described (`state_fits`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.model.errors import UsageError
from holdfast.operators.functor import functor_of
from holdfast.operators.udop import UserOperator, columns_text
from holdfast.stream.identity import Identity, differences, told

if TYPE_CHECKING:
    from holdfast.spark.keyed import Keyed

#: The mark that has it.
MADE_BY = b"made_by"
#: Begins the line that says whose instructions fingerprints are of.
_PYTHON = "code of "
#: Lines about what it works on, which follow those about what it is.
_WORKS_ON = 3
#: Longer values are shown by their fingerprints.
_SHOWN_MAX = 80


def made_by(plan: Keyed, key_type: str, schema: pa.Schema) -> bytes:
    """Rules 1 and 2, a line each."""
    from holdfast.spark.fingerprint import PYTHON  # Notes are made in the driver and compared in workers.

    is_made = _is_made(plan.prototype)
    if any(" code " in line for line in is_made):
        is_made = [f"{_PYTHON}{PYTHON}", *is_made]
    key = "no key" if plan.key is None else f"key {plan.key} {key_type}".rstrip()
    lines = [*is_made, key, f"time {plan.time or 'of the clock'}", f"gives {columns_text(schema)}"]
    return "\n".join(lines).encode()


def _is_made(prototype: Any) -> list[str]:
    known: list[str] | None = getattr(prototype, "made_of", None)
    if known is not None:
        return known
    if isinstance(prototype, type):
        return [_named(prototype)]
    if isinstance(prototype, partial):
        values = {**{str(n): value for n, value in enumerate(prototype.args)}, **prototype.keywords}
        return [*_is_made(prototype.func), *(_given(name, value) for name, value in sorted(values.items()))]
    functor = functor_of(prototype)
    if functor is not None:
        return [f"functor {functor.name}, {_code(functor.unprotected)}"]
    return [f"function {_name(prototype)}, {_code(prototype)}"]


def _given(name: str, value: Any) -> str:
    shown = repr(value) if isinstance(value, bool | int | float | str | None) else ""
    return f"given {name}: {shown if 0 < len(shown) <= _SHOWN_MAX else f'{_name(value)}, {_code(value)}'}"


def _code(value: Any) -> str:
    from holdfast.spark.fingerprint import fingerprint

    return f"code {fingerprint(value, by_name=(UserOperator,))}"


def _name(prototype: Any) -> str:
    return str(getattr(prototype, "__qualname__", type(prototype).__qualname__))


def _named(prototype: Any) -> str:
    return f"class {_name(prototype)}"


def check_made_by(plan: Keyed, noted: bytes | None, now: bytes) -> None:
    """Refuses a state that something else has made."""
    if noted is None or noted == now or plan.state_fits:
        return
    before, after = _read(noted), _read(now)
    if before.lines[:-_WORKS_ON] == (_named(plan.prototype),):  # Rule 3.
        before = Identity((*after.lines[:-_WORKS_ON], *before.lines[-_WORKS_ON:]), python=after.python)
    if not (found := differences(before, after)):
        return
    raise UsageError(
        f"the operator {plan.name} must be the one that made its state; it has changed: "
        f"{told(found)}; change it back, or start a query with a checkpointLocation of its own; "
        f"if you know that the state fits, say udop(…, state_fits=True) until its first batch is through"
    )


def _read(note: bytes) -> Identity:
    lines = note.decode().split("\n")
    python = lines.pop(0) if lines[0].startswith(_PYTHON) else ""
    return Identity(tuple(lines), python=python)
