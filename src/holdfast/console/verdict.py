"""What was promised, what was measured, and whether the one keeps the other.

Each function looks at a recording and returns one check; a verdict is a list of them, for a terminal or for a page.
The judgement is about one client and one run: what it says of D1, D3, D4 and D5 holds for what that client received.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from holdfast.console.fingerprint import Fingerprint, differing
from holdfast.console.recording import Failure, Mark, Recording
from holdfast.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and its measurement, in words."""

    name: str
    passed: bool
    measured: str
    required: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of a run. Printing it with rich gives a table.

    >>> Verdict([Check("N_tentative", True, "0", "0")]).passed
    True
    """

    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        """All of them."""
        return all(check.passed for check in self.checks)

    def __rich__(self) -> Table:
        table = Table(title="verdict", title_justify="left", expand=False)
        for column in ("", "promise", "measured", "required"):
            table.add_column(column, overflow="fold")
        for check in self.checks:
            sign = Text("pass", "green") if check.passed else Text("FAIL", "bold red")
            table.add_row(sign, Text(check.name), Text(check.measured), Text(check.required))
        return table

    def html(self) -> str:
        """The same as an HTML table; every text is escaped."""
        rows = []
        for check in self.checks:
            cells = "".join(f"<td>{html.escape(t)}</td>" for t in (check.name, check.measured, check.required))
            kind, sign = ("pass", "✔ pass") if check.passed else ("fail", "✘ FAIL")
            rows.append(f'<tr><td class="{kind}">{sign}</td>{cells}</tr>')
        head = '<tr><th scope="col"></th><th scope="col">promise</th><th scope="col">measured</th>'
        head += '<th scope="col">required</th></tr>'
        return f'<table class="verdict"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def added_delay(recording: Recording, delay_us: int, normal_us: int, since_us: int | None = None) -> Check:
    """The largest delay that failures added to a new tuple stays below X (D5; 003 §4.1, Delay_new < X).

    `normal_us` is the latency without a failure, for instance `recording.latency(warm_us, cut_us).us_max`; what came
    before `since_us` (a system that was still warming up) is left out.
    """
    name, required = "added delay of new tuples", f"< X = {seconds(delay_us)}"
    latency = recording.latency(since_us)
    if latency is None:
        return Check(name, False, "no new tuple came", required)
    added = max(0, latency.us_max - normal_us)
    said = f"{seconds(added)} (largest latency {seconds(latency.us_max)}, normally {seconds(normal_us)})"
    return Check(name, added < delay_us, said, required)


def all_corrected(recording: Recording) -> Check:
    """Nothing tentative stands and no corrections are open: N_tentative = 0 (D3)."""
    name, required = "every tentative tuple was corrected", "N_tentative = 0, REC_DONE came"
    said = f"N_tentative = {recording.standing:,} of {recording.tentative:,}"
    if any(failure.healed_us is None for failure in recording.failures()):
        said += "; a failure was never healed"
    if recording.state == "CORRECTING":
        said += "; UNDO without REC_DONE"
    return Check(name, recording.state not in ("TENTATIVE", "CORRECTING"), said, required)


def none_after_done(recording: Recording) -> Check:
    """Tentative output begins only after something failed: never after REC_DONE unless a new failure began (D4)."""
    name, required = "nothing tentative after REC_DONE without a new failure", "0 times"
    marks = recording.marks
    wrong, done_us = 0, None
    for correction in recording.corrections:
        wrong += not _failure_for(correction.began_us, done_us, marks)
        done_us = correction.done_us
    return Check(name, wrong == 0, f"{wrong} times", required)


def _failure_for(began_us: int, done_us: int | None, marks: Sequence[Mark]) -> bool:
    """A link is cut at that moment, or one was cut since the last REC_DONE."""
    before = [mark for mark in marks if mark.wall_us <= began_us]
    still = 0
    for mark in before:
        still = still + 1 if mark.kind == "cut" else max(0, still - 1) if mark.kind == "healed" else still
    return still > 0 or any(m.kind == "cut" and (done_us is None or m.wall_us > done_us) for m in before)


def time_to_correct(recording: Recording, limit_us: int | None = None) -> Check:
    """From the healing to REC_DONE, for the failure that took longest (D3: bounded)."""
    name = "time from healing to REC_DONE"
    required = "REC_DONE comes" if limit_us is None else f"at most {seconds(limit_us)}"
    failures = recording.failures()
    if not failures:
        return Check(name, True, "no failure", required)
    if open_ := [failure for failure in failures if _is_open(failure)]:
        why = "never healed" if open_[0].healed_us is None else "healed, not corrected"
        return Check(name, False, f"{len(open_)} of {len(failures)} failures: {why}", required)
    times = [failure.to_correct_us for failure in failures if failure.to_correct_us is not None]
    if not times:
        return Check(name, True, "nothing was tentative: the failure was masked", required)
    said = seconds(max(times)) + (f" (the longest of {len(times)})" if len(times) > 1 else "")
    return Check(name, limit_us is None or max(times) <= limit_us, said, required)


def _is_open(failure: Failure) -> bool:
    return failure.healed_us is None or (failure.tentative > 0 and failure.corrected_us is None)


def stable_equal(
    recording: Recording, reference: pa.Table | Iterable[pa.RecordBatch], columns: Sequence[str] | None = None
) -> Check:
    """The stable tuples are those of the reference, byte for byte and in order: none lost, doubled, changed (D1, D9).

    `columns` are the ones compared; otherwise all but `tuple_type`. The reference is what the same input gives without
    a failure, with the types of the stream's own columns.
    """
    name = "stable output equals the run without failure"
    rows, digests = recording.stable_fingerprint()
    if rows and (unknown := [column for column in columns or () if column not in digests]):
        raise UsageError(f"columns to compare must be among {', '.join(digests)}; got {', '.join(unknown)}")
    whole, prefix = Fingerprint(), {}
    for batch in _split_at(_batches(reference), rows):
        if whole.rows == rows:
            prefix = whole.digests()
        whole.take(batch.select([n for n in batch.schema.names if n != "tuple_type" and _in(n, columns)]))
    required = f"{whole.rows:,} rows, byte-equal, in this order"
    got = {column: digest for column, digest in digests.items() if _in(column, columns)}
    if rows == whole.rows and not differing(got, whole.digests()):
        return Check(name, True, f"{rows:,} rows, byte-equal", required)
    if rows < whole.rows and not differing(got, prefix):
        return Check(name, False, f"{rows:,} rows, byte-equal; the last {whole.rows - rows:,} are missing", required)
    wrong = ", ".join(differing(got, whole.digests()))
    return Check(name, False, f"{rows:,} rows" + (f"; differs in {wrong}" if rows == whole.rows else ""), required)


def _in(column: str, columns: Sequence[str] | None) -> bool:
    return columns is None or column in columns


def _batches(reference: pa.Table | Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return reference.to_batches() if isinstance(reference, pa.Table) else reference


def _split_at(batches: Iterable[pa.RecordBatch], row: int) -> Iterator[pa.RecordBatch]:
    """The same rows, cut so that a batch begins at that row."""
    seen = 0
    for batch in batches:
        if seen < row < seen + batch.num_rows:
            yield batch.slice(0, row - seen)
            yield batch.slice(row - seen)
        else:
            yield batch
        seen += batch.num_rows


def seconds(us: int) -> str:
    """A measured duration for people.

    >>> seconds(2_904_500), seconds(180_000), seconds(0)
    ('2.90 s', '180 ms', '0 ms')
    """
    return f"{us / 1e6:.2f} s" if abs(us) >= 1_000_000 else f"{us / 1e3:.0f} ms"
