"""holdfast plan-contracts"""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.session import Json
from holdfast.load.contract_value import SELLERS
from holdfast.load.planner import Plan, plan_contracts
from holdfast.model.errors import UsageError


class Partners(Enum):
    """Whose load partners are taken to have."""

    MINE = "mine"
    LIGHT = "light"
    UNIFORM = "uniform"
    HEAVY = "heavy"


def command(
    history: Annotated[Path, typer.Argument(help="Loads as shares of capacity: one per line, or a CSV; - for stdin.")],
    column: Annotated[str | None, typer.Option(help="The column of a CSV with a header.")] = None,
    threshold: Annotated[float, typer.Option(help="The load that you do not want to exceed.")] = 0.9,
    capacity: Annotated[float, typer.Option(help="Cores of the host, as in its contract file.")] = 1.0,
    upkeep: Annotated[float, typer.Option(help="What keeping one contract costs per unit of time.")] = 0.01,
    partners: Annotated[Partners, typer.Option(help="How loaded partners are.")] = Partners.MINE,
    runs: Annotated[int, typer.Option(help="Situations that are tried.", min=1000)] = 50_000,
    json: Json = False,
) -> None:
    """How many contracts to make, at which price, from your own load.

    Costs and prices are in the units of the default cost function: tuples in process or waiting, at each load
    (docs/load-sharing.md). A row is a kind of contract: as buyer or as seller, with the price of a core at the
    threshold, against spikes, or near the median, for every day. It is the price that a contract names: the more cores
    a host has, the less one of them is worth at the same load. "contracts" is how many bring most, of at most 20;
    "nearly do" how many bring 95 % of that; "benefit" what they bring per unit of time, upkeep paid.

    \b
    holdfast plan-contracts cpu.txt --threshold 0.85 --capacity 4
    holdfast plan-contracts usage.csv --column cpu --upkeep 0.05 --partners heavy
    """
    loads = _read(history, column)
    other = None if partners is Partners.MINE else SELLERS[partners.value]
    plan = plan_contracts(loads, threshold, upkeep, other, runs, capacity=capacity)
    if json:
        import json as codec

        print(codec.dumps(asdict(plan)))
    else:
        _show(plan)


def _read(path: Path, column: str | None) -> list[float]:
    name = "the input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"the load history {path} cannot be read: {why}; check the path") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    at = -1
    if column is not None:
        header = next(csv.reader([lines.pop(0)[1]])) if lines else []
        if column not in header:
            raise UsageError(f"column {column!r} must be in the header of {name}; got {', '.join(header)!r}")
        at = header.index(column)
    return [_load(name, number, line, at, column) for number, line in lines]


def _load(name: str, number: int, line: str, at: int, column: str | None) -> float:
    cells = next(csv.reader([line]))
    try:
        return float(cells[at])
    except (ValueError, IndexError):
        got = cells[at] if at < len(cells) else line
        advice = "; name a --column" if column is None and (number == 1 or len(cells) > 1) else ""
        raise UsageError(f"line {number} of {name} must be a load such as 0.75; got {got!r}{advice}") from None


def _show(plan: Plan) -> None:
    print(f"{plan.samples} samples, median load {plan.median:.2f}; above the threshold {plan.spike_share:.1%} of the "
          f"time, by {plan.spike_mean:.2f} on average")  # fmt: skip
    print(f"prices are per core, for a capacity of {plan.capacity:g} core{'' if plan.capacity == 1 else 's'}")
    print(f"{'role':8}{'priced at':12}{'load':>6}{'unit price':>12}{'contracts':>11}{'nearly do':>11}{'benefit':>11}")
    for advice in plan.advice:
        print(f"{advice.direction:8}{advice.at:12}{advice.load:6.2f}{advice.price:12.2f}{advice.contracts:11}"
              f"{advice.enough:11}{advice.benefit:11.4f}")  # fmt: skip
    if plan.spike_share:
        print(f"a spike then overloads you in {plan.overload_with:.1%} of cases instead of all")
    else:
        print("your load never exceeds the threshold: you need no contract against overload")
