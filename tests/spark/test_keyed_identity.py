"""Whose state an operator takes where only a function tells what it is (C12). Tasks run by hand, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.policy import every, none
from holdfast.model.errors import UsageError
from holdfast.operators import functor
from holdfast.operators.udop import UserOperator
from holdfast.spark.keyed import udop
from holdfast.spark.keyed_task import Task
from tests.spark.summing import Summing
from tests.spark.test_keyed_state import EXACT, Fleeting, make, sums, task


class Scaled(Summing):
    def __init__(self, by: int = 1, kind: type = Summing) -> None:
        super().__init__()
        self.by = by

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return super().process({**row, "value": row["value"] * self.by})


def scaled(by: int) -> UserOperator:
    return Scaled(by)


def twice() -> UserOperator:
    return Scaled(2)


@dataclass(frozen=True)
class Maker:
    by: int

    def __call__(self) -> UserOperator:
        return Scaled(self.by)


def counted(row: dict[str, Any], v: dict[str, Any]) -> dict[str, Any]:
    v["sum"] += row["value"]
    return {"key": row["key"], "sum": v["sum"]}


def doubled(row: dict[str, Any], v: dict[str, Any]) -> dict[str, Any]:
    return counted({**row, "value": 2 * row["value"]}, v)


def ran(folder: Path, prototype: Callable[[], UserOperator], **other: Any) -> Task:
    return task(replace(make(folder, EXACT), prototype=prototype, **other))


def built(function: Any = counted, name: str = "sums", **variables: int) -> Callable[[], UserOperator]:
    return functor(name, function, variables=variables or {"sum": 0}).build


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (built(), built(doubled), r"- functor sums, code \w+ \| \+ functor sums, code"),
        (built(), built(sum=5), "functor sums, code"),
        (built(), built(name="totals"), r"\+ functor totals"),
        (lambda: Summing(), lambda: Fleeting(), r"function <lambda>, code"),
        (partial(Scaled, 2), partial(Scaled, 3), r"- given 0: 2 \| \+ given 0: 3"),
        (partial(Scaled, by=2), partial(Scaled, by=2, kind=Fleeting), r"\+ given kind: Fleeting, code"),
        (partial(Scaled, by=2), partial(Summing), r"- class Scaled"),
        (partial(scaled, 2), partial(scaled, 3), r"- given 0: 2"),
        (Maker(2), Maker(3), r"function Maker, code"),
    ],
)
def test_what_a_function_makes_is_told_from_what_another_makes(
    tmp_path: Path, before: Any, now: Any, said: str
) -> None:
    """Each had the name of what wraps it: Functor.build, partial, <lambda>."""
    assert sums(ran(tmp_path, before), "q", 0, ("a", 1))[0][0] == "a"
    with pytest.raises(UsageError, match=f"it has changed: .*{said}"):
        sums(ran(tmp_path, now), "q", 1, ("a", 1))
    sums(ran(tmp_path, before), "q", 1, ("a", 1))
    sums(ran(tmp_path, now, state_fits=True), "q", 2, ("a", 1))


def test_the_code_of_a_class_may_change_and_a_wrapped_one_is_the_same_at_each_start(tmp_path: Path) -> None:
    """Its own restore reads what it saved, whoever makes it."""

    def written(by: int) -> type[UserOperator]:
        def process(self: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
            return Summing.process(self, {**row, "value": row["value"] * by})

        return type("Written", (Summing,), {"process": process, "by": by, "__qualname__": "Written"})

    def made(kind: type[UserOperator]) -> Callable[[], UserOperator]:
        return lambda: kind()

    for n, wrap in enumerate((lambda kind: kind, partial, made)):
        assert sums(ran(tmp_path, wrap(written(1))), f"q{n}", 0, ("a", 1)) == [("a", 1)]
        assert sums(ran(tmp_path, wrap(written(10))), f"q{n}", 1, ("a", 1)) == [("a", 11)]
    for n, prototype in enumerate((built, lambda: partial(Scaled, by=2))):
        for batch in range(2):
            sums(ran(tmp_path, prototype()), f"r{n}", batch, ("a", 1))


@pytest.mark.parametrize(
    ("prototype", "noted"),
    [(built(), "Functor.build"), (partial(Scaled, 2), "partial"), (twice, "twice"), (Maker(2), "Maker")],
)
def test_a_state_of_before_the_code_of_functions_counted_is_taken_and_noted_anew(
    tmp_path: Path, prototype: Any, noted: str
) -> None:
    before = ran(tmp_path, prototype)
    before._states._made_by = f"class {noted}\nkey key string\ntime of the clock\ngives key string, sum int64".encode()
    sums(before, "q", 0, ("a", 1))
    sums(before, "other", 0, ("a", 1))
    with pytest.raises(UsageError, match=r"- key key string \| \+ no key"):
        sums(ran(tmp_path, prototype, key=None), "other", 1, ("a", 1))
    sums(ran(tmp_path, prototype), "q", 1, ("a", 1))
    with pytest.raises(UsageError, match="it has changed"):
        sums(ran(tmp_path, built(doubled)), "q", 2, ("a", 1))


def test_code_is_not_compared_between_versions_of_python(tmp_path: Path) -> None:
    before = ran(tmp_path, built())
    note = before._states._made_by
    assert note.startswith(b"code of ")
    before._states._made_by = b"code of another\nfunctor sums, code 0123456789abcdef\n" + note.split(b"\n", 2)[2]
    sums(before, "q", 0, ("a", 1))
    with pytest.raises(UsageError, match=r"- time of the clock \| \+ time at"):
        sums(ran(tmp_path, built(), time="at"), "q", 1, ("a", 1))
    sums(ran(tmp_path, built()), "q", 1, ("a", 1))


def test_the_policy_that_a_functor_is_annotated_with_protects_it_on_spark(tmp_path: Path) -> None:
    """udop's own goes before it; and a functor without variables has nothing to save."""
    given: dict[str, Any] = {"key": "key", "schema": make(tmp_path, EXACT).schema, "store": f"log:{tmp_path}/far"}
    counts = functor("counts", counted, variables={"sum": 0}, checkpoint=EXACT)
    assert udop("sums", counts.build, **given).checkpoint == EXACT
    assert udop("sums", counts.build, **given, checkpoint=every("9s")).checkpoint == every("9s")
    assert udop("sums", counts.build, **given, checkpoint=none).checkpoint == none
    with pytest.raises(UsageError, match=r'every\("1ms", exact=True\) needs a store'):
        udop("sums", counts.build, **{**given, "store": None})
    plain = functor("plain", lambda row, v: row, checkpoint=EXACT)
    assert udop("plain", plain.build, **{**given, "store": None}).checkpoint == none
    assert sums(task(udop("sums", counts.build, **given, scratch=str(tmp_path / "a"))), "q", 0, ("a", 1)) == [("a", 1)]
    late = replace(counts, checkpoint=every("1m", exact=True))  # A policy is a promise, and no part of what it is.
    for n, more in enumerate(({}, {"checkpoint": EXACT}), 1):
        ran = task(udop("sums", late.build, **given, **more, scratch=str(tmp_path / f"{n}")))
        assert sums(ran, "q", n, ("a", 1)) == [("a", 1 + n)]
