"""The table "How fast" of the README and those of docs/operators.md and docs/load-sharing.md, from published results.

    python -m benches.evaluation.readme      rewrites them; a test compares the two

Each row of the README carries the day on which it was measured, and says if the code is newer than that, so that nobody
takes a number for newer than it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benches.evaluation import explained, history
from benches.evaluation.results import PUBLISHED, Missing, Result, Results

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"
OPERATORS, LOAD_SHARING, EXPLAINED = DOCS / "operators.md", DOCS / "load-sharing.md", DOCS / "img" / "bpm-explained.svg"
BEGIN = "<!-- made by python -m benches.evaluation.readme from benches/results -->\n"
END = "<!-- end of the table -->\n"


class Row(NamedTuple):
    bench: str
    what: str
    beside: str
    figure: Callable[[Result], str]


#: Below src/holdfast: what a bench measures. Other code may change without its number being in doubt.
CODE = {
    "log_append": ("stream",), "kafka_in": ("inputs", "stream"), "sinks": ("sinks", "stream"),
    "spark_read": ("spark", "stream"), "microbatch": ("spark", "stream"), "batch_growth": ("spark", "stream"),
    "dpc_overhead": ("protocol/dpc", "host", "spark"), "cec_throughput": ("operators", "protocol/cec", "spark"),
    "cec_recovery": ("operators", "protocol/cec", "spark"), "stores": ("checkpoint",),
}  # fmt: skip


def _stores(callers: int) -> Callable[[Result], str]:
    def said(r: Result) -> str:
        at = r("over_stores", callers)
        *most, last = (f"{at[name]:g}" for name in ("RocksDB", "LMDB", "SQLite", "Redis"))
        return f"{', '.join(most)} and {last} times{_note(r, f'note_{callers}')}"

    return said


def _note(r: Result, name: str = "note") -> str:
    """What was added to a published number by hand."""
    note: Any = r.values.get(name)
    return f" ({note})" if note else ""


def _aggregated(r: Result) -> str:
    """Beside the better of Spark's two state stores, where both were measured."""
    kind, store = ("best", "the better of its state stores") if r.values.get("ratio_best_1k") else ("native", "RocksDB")
    few, some, many = (r(f"ratio_{kind}_{keys}") for keys in ("1k", "100k", "1m"))
    said = f"with {store}: {few:g} times with 1,000 keys, {some:g} with 100,000, {many:g} with a million"
    limit = r.values.get("of_polars_100k")
    return f"{said}; {limit:g} of polars alone, log to log, with 100,000" if limit else said


def _recovered(r: Result) -> str:
    """The same of recoveries."""
    few, some, many = r("ratios").values()
    beside = "the better of its state stores" if r.values.get("peers") else "RocksDB"
    return f"with {beside}: {few:g}, {some:g} and {many:g} times as quick (10,000, 100,000 and a million windows)"


def _short(number: float) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e6 else f"{number:,.0f}"


ROWS = (
    Row("log_append", ", Arrow batches of 1,000", "a raw `write` + `fdatasync` loop with the same bytes",
        lambda r: f"{r('ratio_raw'):g} of it ({_short(r('batch_records_per_s'))} records of 1 KiB per second)"),
    Row("log_append", ", 64 callers", "RocksDB, LMDB, SQLite, Redis, each durable per record", _stores(64)),
    Row("log_append", ", 16 callers", "the same", _stores(16)),
    Row("log_append", ", 1 caller", "the same", _stores(1)),
    Row("log_append", ", 1 caller with `send_async`", "64 callers that wait",
        lambda r: f"{r('async_ratio'):g} times their rate{_note(r, 'note_async')}"),
    Row("kafka_in", "", "a plain consumer loop that decodes the same records and keeps nothing",
        lambda r: f"{r('kafka_ratio'):g} of it ({_short(r('records_per_s'))} records per second); visible "
                  f"{r('visible_ms_p50')} ms after it was sent"),
    Row("sinks", "", "`COPY` alone; `deltalake.write_deltalake` alone",
        lambda r: f"{r('postgres_ratio'):g} of it into PostgreSQL; {r('delta_ratio'):g} of it into Delta; "
                  f"{_short(r('corrected_rows'))} tentative rows corrected {r('corrected_s'):g} s after the failure"),
    Row("spark_read", "", "a Python data source that yields the same batches from memory",
        lambda r: f"{r('ratio'):g} of it ({_short(r('rows_per_s'))} rows per second); visible to a query "
                  f"{r('visible_ms_p50')} ms after `send` with 50 ms buckets"),
    Row("microbatch", "", "Spark's own settings",
        lambda r: f"{r('ratio'):g} times as quick ({r('batch_ms', 'Holdfast')} instead of "
                  f"{r('batch_ms', NATIVE)} ms for the smallest stateful batch){_note(r)}"),
    Row("batch_growth", "", "a batch to a stream that holds 100 units",
        lambda r: f"its commit ({r('ms', 'commit', 100):g} ms): {r('ratio_10k'):g} with 10,000 units in the segment, "
                  f"{r('ratio_100k'):g} with 100,000; the whole batch in Spark ({r('ms', 'batch', 100):g} ms): "
                  f"{r('spark_ratio_10k'):g} and {r('spark_ratio_100k'):g}"),
    Row("dpc_overhead", ", no failure", "the same query over the same streams without a node",
        lambda r: f"{r('throughput_ratio'):g} of its throughput, {r('latency_ratio'):g} of its latency "
                  "([docs/choosing.md](docs/choosing.md))"),
    Row("cec_throughput", ", checkpoints on", "Spark's windowed aggregation",
        lambda r: f"{_aggregated(r)} ([docs/operators.md](docs/operators.md))"),
    Row("cec_recovery", ", kill -9 and the disk of the workers lost", "Spark's recovery of the same query",
        _recovered),
    Row("stores", ", 64 callers", "one file per key; RocksDB, LMDB, SQLite, Redis, equally durable",
        lambda r: f"{r('log_over_files'):g} times; {'ahead of all' if r('log_ahead_of_all') else 'not ahead of all'} "
                  "([docs/checkpoints.md](docs/checkpoints.md))"),
)  # fmt: skip
NATIVE = "Spark's defaults"


def rendered(folder: Path = PUBLISHED) -> str:
    results = Results(folder)
    lines = ["| bench | beside | figure | measured |", "| --- | --- | --- | --- |"]
    for row in ROWS:
        try:
            r = results(row.bench)
        except Missing:
            continue  # Not published yet: better no row than an old number under a new name.
        code = (f"benches/{row.bench}.py", *(f"src/holdfast/{part}" for part in CODE[row.bench]))
        newer = "; the code is newer" if history.is_newer(r.commit, code) else ""
        lines.append(f"| `{row.bench}`{row.what} | {row.beside} | {row.figure(r)} | {r.date}, {r.commit}{newer} |")
    return "\n".join(lines) + "\n"


APPLICATIONS = {
    "time_1000": "time windows, 1,000 keys", "time_100000": "time windows, 100,000 keys",
    "time_1000000": "time windows, 1,000,000 keys", "fast": "fast: windows of 1 tuple, 1,000 items",
    "slow": "slow: windows of 1,000 tuples, 2 items", "mixed": "mixed: windows of 10 tuples, 110 items",
}  # fmt: skip
#: Below this a difference of two rates says nothing.
_NOISE = 0.01


def throughput(r: Result) -> str:
    """The table of docs/operators.md: tuples per second, beside the better of Spark's stores, and polars."""
    heads = ("application", "with checkpoints", "without", "Spark", "Spark, state in memory", "beside the better",
             "polars", "of it", "checkpoints cost")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "| " + " | ".join("---" for _ in heads) + " |"]
    for name, label in APPLICATIONS.items():
        ours, plain, peer, memory, polars = (*r("rates", name), None, None, None)[:5]
        ratio, cost = _ratio(r, name) or ours / max(peer, memory or 0), r("cec_costs", name)
        said = "within the noise" if cost < -_NOISE else "none" if cost < _NOISE else f"{cost:.0%}".replace("%", " %")
        cells = [label, *(f"{n:,}" for n in (ours, plain, peer)), f"{memory:,}" if memory else "–",
                 f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}", f"{polars:,}" if polars else "–",
                 f"{ours / polars:.2f}" if polars else "–", said]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return _dated(lines, r)


def _ratio(r: Result, name: str) -> float | None:
    """As the bench has it, from rates that were not rounded."""
    keys = {"time_1000": "1k", "time_100000": "100k", "time_1000000": "1m"}.get(name)
    found: Any = r.values.get(f"ratio_best_{keys}") or r.values.get(f"ratio_native_{keys}")
    return found and float(found)


def recoveries(r: Result) -> str:
    """The other one: seconds until an operator is back."""
    lines = ["| open windows | Holdfast | Spark, RocksDB | Spark, state in memory | beside the better |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for windows, (ours, rocks, *memory) in r("seconds").items():
        shown = f"{memory[0]:g}" if memory else "–"
        lines.append(f"| {int(windows):,} | {ours:g} | {rocks:g} | {shown} | {r('ratios', windows):g} |")
    return _dated(lines, r)


def _dated(lines: list[str], r: Result) -> str:
    return "\n".join([*lines, "", f"Measured {r.date}, {r.commit}."]) + "\n"


def operators(page: str, folder: Path = PUBLISHED) -> str:
    """docs/operators.md with its two tables."""
    results = Results(folder)
    for bench, made in (("cec_throughput", throughput), ("cec_recovery", recoveries)):
        begin = BEGIN.replace(" from benches/results", f" from benches/results/{bench}.json")
        page = replaced(page, made(results(bench)), begin, "docs/operators.md")
    return page


def load_sharing(page: str, folder: Path = PUBLISHED) -> tuple[str, str]:
    """docs/load-sharing.md with its table, and the picture beside it."""
    found = Results(folder)("bpm_explained")
    begin = BEGIN.replace(" from benches/results", " from benches/results/bpm_explained.json")
    return replaced(page, explained.table(found), begin, "docs/load-sharing.md"), explained.figure(found)


def replaced(page: str, made: str, begin: str = BEGIN, name: str = "README.md") -> str:
    """The page with this table in it."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(END)
    if not (found and closed) or page.count(begin) != 1:
        raise ValueError(f"{name} must have the two comments around the table once each; put them back")
    return f"{before}{begin}{made}{END}{after}"


def write() -> None:
    """All of them."""
    README.write_text(replaced(README.read_text(), rendered()))
    OPERATORS.write_text(operators(OPERATORS.read_text()))
    made, picture = load_sharing(LOAD_SHARING.read_text())
    LOAD_SHARING.write_text(made)
    EXPLAINED.write_text(picture)


if __name__ == "__main__":
    write()
