"""What the state of a user-defined operator was made by: noted with the state, in scratch and in the store (C12).

Rules:
1. The name of the class, the key and its type, the time that it goes by, and the columns of its results count; of a
   join and a barrier, their inputs and windows. The code of a class does not: its own `restore` reads what it saved.
   Nor do policy, store and number of partitions.
2. The note is a mark of each save, so it lies with the state wherever that goes. A state of before there were notes has
   none: it is taken, and noted with the next save.
3. Inside a node the note of the node decides, for which `holdfast upgrade` has the answers. Outside, who knows that the
   state fits says so where the operator is described (`state_fits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.model.errors import UsageError
from holdfast.operators.udop import columns_text
from holdfast.stream.identity import Identity, differences, told

if TYPE_CHECKING:
    from holdfast.spark.keyed import Keyed

#: The mark that has it.
MADE_BY = b"made_by"


def made_by(plan: Keyed, key_type: str, schema: pa.Schema) -> bytes:
    """Rule 1, a line each."""
    prototype = plan.prototype
    made = getattr(prototype, "made_of", None)
    name = getattr(prototype, "__qualname__", type(prototype).__qualname__)
    key = "no key" if plan.key is None else f"key {plan.key} {key_type}".rstrip()
    lines = [*(made or [f"class {name}"]), key, f"time {plan.time or 'of the clock'}", f"gives {columns_text(schema)}"]
    return "\n".join(lines).encode()


def check_made_by(plan: Keyed, noted: bytes | None, now: bytes) -> None:
    """Refuses a state that something else has made."""
    if noted is None or noted == now or plan.state_fits:
        return
    before, after = (Identity(tuple(text.decode().split("\n"))) for text in (noted, now))
    raise UsageError(
        f"the operator {plan.name} must be the one that made its state; it has changed: "
        f"{told(differences(before, after))}; change it back, or start a query with a checkpointLocation of its own; "
        f"if you know that the state fits, say udop(…, state_fits=True) until its first batch is through"
    )
