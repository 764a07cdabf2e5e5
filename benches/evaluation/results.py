"""What benches measured: a JSON file each, of the present run or of a published one.

Rules:
1. A file says when, from which commit, by which command and on which machine it was made, in which form (full or short)
   and what part of the machine others had meanwhile.
2. `benches/results` holds what is published; a run writes elsewhere. Only full runs on a machine without others are
   published by themselves (`publish`); a file that was entered by hand from a published table says so (`source`).
3. Whoever draws asks for a value by its path; one that is not there is `Missing`, and the older files are tried next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benches.report import FORMAT

PUBLISHED = Path(__file__).parents[1] / "results"
#: Beside more than this a time says more about the others.
OTHERS_MAX = 0.15

T = TypeVar("T")


class Missing(Exception):
    """A value that no result has."""


class Result(NamedTuple):
    """One run of one bench."""

    bench: str
    date: str
    commit: str
    command: str
    machine: Mapping[str, Any]
    values: Mapping[str, Any]
    """Figures and detail in one."""
    full: bool = False
    others: float | None = None
    source: str = ""

    @property
    def quiet(self) -> bool:
        return self.others is not None and self.others <= OTHERS_MAX

    def __call__(self, *path: object) -> Any:
        value: Any = self.values
        for step in path:
            try:
                value = value[step] if isinstance(value, list) else value[str(step)]
            except (KeyError, IndexError, TypeError):
                raise Missing(f"{self.bench}: no {' / '.join(map(str, path))}") from None
            if value is None:
                raise Missing(f"{self.bench}: no {' / '.join(map(str, path))}")
        return value

    def provenance(self) -> str:
        """When, how and under which conditions, in one line."""
        form = "full" if self.full else "short"
        beside = ("conditions not recorded" if self.others is None else
                  "quiet machine" if self.quiet else f"others had {self.others:.0%} of the machine")  # fmt: skip
        return f"{self.command} · {self.date} · commit {self.commit} · {form} form, {self.source or beside}"


class Results:
    """Results by bench: those of one folder over those of another."""

    def __init__(self, *folders: Path) -> None:
        self._found: dict[str, Result] = {}
        for folder in reversed(folders):
            self._found |= {result.bench: result for result in read_all(folder)}
        self.used: list[Result] = []

    def __call__(self, bench: str) -> Result:
        if bench not in self._found:
            raise Missing(f"{bench} was not run")
        result = self._found[bench]
        if result not in self.used:
            self.used.append(result)
        return result

    def __iter__(self) -> Iterator[Result]:
        return iter(self._found.values())


class Sources(NamedTuple):
    """Where values are looked for, best first."""

    tried: Sequence[Callable[[], Results]]

    def first(self, ask: Callable[[Results], T]) -> tuple[T, list[Result]]:
        """The answer of the first results that have all it takes, and what it was made from."""
        reason = Missing("no results at all")
        for make in self.tried:
            results = make()
            try:
                return ask(results), results.used
            except Missing as missing:
                reason = missing
            except ZeroDivisionError:
                reason = Missing(f"{', '.join(r.bench for r in results.used)}: a rate of nothing")
        raise reason


def sources(run: Path | None) -> Sources:
    """The run's results over the published ones, then the published ones alone."""
    published: Callable[[], Results] = lambda: Results(PUBLISHED)  # noqa: E731
    return Sources([published] if run is None else [lambda: Results(run, PUBLISHED), published])


def read_all(folder: Path) -> list[Result]:
    return [read(path) for path in sorted(folder.glob("*.json"))]


def read(path: Path) -> Result:
    kept = json.loads(path.read_text())
    if kept.get("format") != FORMAT:
        raise ValueError(f"{path.name} must have format {FORMAT}; got {kept.get('format')}: run its bench again")
    values = {**kept["detail"], **kept["figures"]}
    return Result(kept["bench"], kept["date"], kept["commit"], kept["command"], kept["machine"], values,
                  kept.get("form") == "full", kept.get("others"), kept.get("source", ""))  # fmt: skip


def stamp(path: Path, full: bool, others: float) -> None:
    """Add what only the one who ran the bench knows."""
    kept = json.loads(path.read_text())
    kept["form"], kept["others"] = "full" if full else "short", others
    write(path, kept)


def write(path: Path, kept: Mapping[str, Any]) -> None:
    """One line per value at the top, the rest packed: small, and differences can be read."""
    head = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in kept.items() if k not in ("figures", "detail")]
    parts = [
        f' "{name}": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in kept[name].items()) + "\n }"
        for name in ("figures", "detail")
    ]
    path.write_text("{\n" + ",\n".join([*head, *parts]) + "\n}\n")


def publish(run: Path) -> list[str]:
    """Copy what was measured in full and undisturbed; the names of those."""
    chosen = [result.bench for result in read_all(run) if result.full and result.quiet]
    for bench in chosen:
        (PUBLISHED / f"{bench}.json").write_bytes((run / f"{bench}.json").read_bytes())
    return chosen
