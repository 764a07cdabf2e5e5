"""002: stores for checkpoints (chapters 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

from benches.evaluation.figures import Claim, Curve, Figure, Grid, Plot
from benches.evaluation.results import Missing, Results

CALLERS = (1, 4, 16, 64)
KEYS = (1_000, 10_000, 100_000, 1_000_000)
_LOCAL = "Ours is a local disk, on which every write is synced."
_NO_NFS = f"No NFS was mounted where ours were measured. {_LOCAL} (`make report NFS=FOLDER` takes a mount.)"
#: Table 5.1 as printed, seconds.
TABLE_51 = {
    "local seq fsync": (0.0353, 0.3237, 3.2741), "local rnd fsync": (0.3349, 3.9525, 1579.3410),
    "local seq": (0.0048, 0.0414, 1.1295), "local rnd": (0.3068, 3.6825, 1381.1431),
    "nfs seq fsync": (0.0315, 0.3181, 3.1816), "nfs rnd fsync": (0.3096, 3.7492, 44.7602),
    "nfs seq": (0.0048, 0.0409, 0.3870), "nfs rnd": (0.2887, 3.3799, 41.8916),
}  # fmt: skip


def _load(r: Results, name: str) -> list[tuple[float, float]]:
    """With one read in ten, as there, or writes alone where only these were published."""
    loads = r("stores")("loads")
    found = [r("stores")("loads", "0.9" if "0.9" in loads else "1", name, n) for n in CALLERS]
    return [(rate, ms) for rate, ms in found]


def _saturation(theirs: Sequence[Curve], note: str) -> object:
    def draw(r: Results) -> Sequence[Plot]:
        ours = [Curve("a file per state", _load(r, "files")), Curve("log with an index", _load(r, "log"))]
        return [Plot("operations per second", "ms per operation", theirs, ours, log_x=True, log_y=True, note=note)]

    return draw


def _most(r: Results, name: str) -> float:
    return max(rate for rate, _ in _load(r, name))


def _rebuild(r: Results) -> Sequence[Plot]:
    ms = r("stores")("rebuild_ms")
    ours = [Curve("from flush and tail", [(k, ms[str(k)][0]) for k in KEYS if str(k) in ms]),
            Curve("from the log alone", [(k, ms[str(k)][1]) for k in KEYS if str(k) in ms])]  # fmt: skip
    return [Plot("states", "ms", [Curve("from the log alone", [(1_000_000, 250)])], ours, log_x=True, log_y=True,
                 note="The text: below 250 ms for a million states of 70 bytes.")]  # fmt: skip


def _where(r: Results) -> str:
    """Where the stores of files lay."""
    return "Ours lay on NFS, too." if r("word_count").values.get("on_nfs") else _NO_NFS


def _word_count(names: Sequence[tuple[str, str]], theirs: Sequence[Curve], note: str, only: str = "",
                of_files: bool = False) -> object:  # fmt: skip
    def draw(r: Results) -> Sequence[Plot]:
        ms = r("word_count")("latency_ms")
        said = f"{note} {_where(r)}" if of_files else note
        ours = [Curve(label, [(i, ms[name][kind]) for i, kind in enumerate(("write", "read"))])
                for name, label in names if name in ms]  # fmt: skip
        return [Plot("operation", "ms per operation, mean", theirs, ours, groups=("write", "read"), log_y=True,
                     note=said, only=only)]  # fmt: skip

    return draw


def _times(r: Results, kind: str) -> float:
    ms = r("word_count")
    return float(ms("latency_ms", "files", kind) / ms("latency_ms", "log", kind))


def _queue(r: Results) -> Sequence[Plot]:
    log = r("stores")("writes_per_s_by_keys")
    files = r("word_count")("files_writes_per_s_by_keys")
    ours = [Curve("a file per state", [(int(k), v) for k, v in files.items()]),
            Curve("log with an index", [(int(k), v) for k, v in log.items()])]  # fmt: skip
    theirs = [Curve("a file per state", [(1_000, 400), (1_000_000, 150)]),
              Curve("log with an index", [(1_000, 1300), (1_000_000, 1300)])]  # fmt: skip
    return [Plot("states", "checkpoints per second", theirs, ours, log_x=True, log_y=True)]


def _table_51(r: Results) -> Sequence[Grid]:
    found = r("random_writes")
    sizes = ("0.96 MB", "9.6 MB", "96 MB")
    rows = [[f"{name}, text", *times] for name, times in TABLE_51.items()]
    for name, mine in found("seconds").items():
        rows.append([f"{name}, ours", *(mine.get(size, "–") for size in sizes)])
    return [Grid(["seconds", *sizes], rows,
                 note="Writes of 10 bytes. The printed heads (1, 10 and 100 million operations) do not fit the printed "
                      "sizes, and 0.0353 s leave no room for a million syncs: ours takes the sizes, and syncs once at "
                      "the end." + ("" if "nfs seq" in found("seconds") else f" {_NO_NFS}"))]  # fmt: skip


def _factor(r: Results, size: str) -> float:
    found = r("random_writes")
    return float(found("seconds", "local rnd", size) / found("seconds", "local seq", size))


def _table_52(r: Results) -> Sequence[Grid]:
    ms = r("word_count")
    rows = [["needs a server of its own", "no, no, yes, yes", "files no, log no, redis yes, hbase yes"],
            ["favours writes over reads", "no, yes, no, yes",
             ", ".join(f"{n} {'yes' if ms('latency_ms', n, 'write') < ms('latency_ms', n, 'read') else 'no'}"
                       for n in ("files", "log", "redis"))],
            ["recovery is costly", "no, yes, no, no",
             f"log: {r('stores')('index_rebuild_1m_ms')} ms for a million states"]]  # fmt: skip
    return [Grid(["", "text: files, indexed log, Redis, HBase", "ours"], rows)]


FIGURES = [
    Figure("002", "figure 4.1", "Two stores on NFS: latency by throughput", _saturation(
        [Curve("a file per state", [(700, 1), (700, 200)], law=True), Curve("log with an index", [(2100, 20)])],
        "Stated are two limits: 700 operations a second, whatever the latency, and 2,100 with 20 ms. " + _LOCAL), [
        Claim("the log with an index takes three times the operations of a file per state, or more",
              lambda r: (f"{_most(r, 'log') / _most(r, 'files'):.0f} times ({_most(r, 'log'):,.0f} and "
                         f"{_most(r, 'files'):,.0f} a second)", _most(r, "log") >= 3 * _most(r, "files"))),
        Claim("at its limit an operation of the log takes no more than 20 ms",
              lambda r: (f"{max(ms for _, ms in _load(r, 'log')):.1f} ms with 64 callers",
                         max(ms for _, ms in _load(r, "log")) <= 20)),
    ]),
    Figure("002", "figure 4.2", "Time to build the index again", _rebuild, [
        Claim("a million states: under 250 ms",
              lambda r: (f"{r('stores')('index_rebuild_1m_ms')} ms from flush and tail{_busy(r)}, "
                         f"{r('stores')('index_from_log_alone_1m_ms')} ms from the log alone", _rebuilt_ms(r) < 250),
              "beside other work: it was 77 ms on a quiet machine"),
        Claim("the time grows with the number of states",
              lambda r: (", ".join(f"{int(k):,}: {v[1]:.0f} ms" for k, v in r("stores")("rebuild_ms").items()),
                         r("stores")("rebuild_ms", 1_000_000)[1] > r("stores")("rebuild_ms", 10_000)[1])),
    ]),
    Figure("002", "figure 4.5", "Word count on three nodes: stores of files", _word_count(
        [("files", "a file per state"), ("log", "log with an index")], [],
        "400 events a second, each with a checkpoint.",
        "The text states ratios: the log is 4.85 times as quick in writing and 3 times in reading.", of_files=True), [
        Claim("the log writes 4.85 times as quickly as a file per state",
              lambda r: (f"{_times(r, 'write'):.1f} times", _times(r, "write") >= 4.85),
              "at 400 events a second neither has a queue; with callers that wait it is 22 times (figure 4.1)"),
        Claim("and reads 3 times as quickly",
              lambda r: (f"{_times(r, 'read'):.1f} times", _times(r, "read") >= 3),
              "on a local disk: a file in the page cache costs little more to read than a log's index to look up"),
    ]),
    Figure("002", "figure 4.6", "Word count on three nodes: stores that are servers", _word_count(
        [("redis", "Redis"), ("hbase", "HBase")], [],
        "Redis here syncs every write, which there it did not; HBase only if Maven could bring it.",
        "The text states an order: Redis writes a little quicker; HBase writes quicker than it reads."), [
        Claim("stores in memory are quicker than files when nothing has to be synced first",
              lambda r: (f"redis {r('word_count')('latency_ms', 'redis', 'write'):.1f} ms, log "
                         f"{r('word_count')('latency_ms', 'log', 'write'):.1f} ms",
                         r("word_count")("latency_ms", "redis", "write")
                         < r("word_count")("latency_ms", "log", "write")),
              "here Redis syncs before it answers (appendfsync always), as the others do; then the log is ahead"),
        Claim("Redis writes a little quicker than HBase",
              lambda r: (f"{r('word_count')('latency_ms', 'redis', 'write'):.1f} and {_hbase(r):.1f} ms",
                         r("word_count")("latency_ms", "redis", "write") < _hbase(r)),
              "here Redis syncs before it answers, which it did not there; HBase on one local disk does not"),
    ]),
    Figure("002", "figure 4.7", "Checkpoints per second by number of states", _queue, [
        Claim("a file per state: the rate falls with the number of states (400 to 150)",
              lambda r: (", ".join(f"{int(k):,}: {v:,}" for k, v in
                                   r("word_count")("files_writes_per_s_by_keys").items()),
                         _falls(list(r("word_count")("files_writes_per_s_by_keys").values()))),
              "a local file system with hashed directories and no server behind it does not mind that many names"),
        Claim("the log: the rate does not depend on it (1,300)",
              lambda r: (f"{_flat(r):.2f} of the rate with 1,000 at a million, per second of the processor where that "
                         "is known", _flat(r) > 0.85),
              "beside other work, single turns: it was 1.15 on a quiet machine"),
    ]),
    Figure("002", "figure 5.1", "The two stores on a local disk", _saturation(
        [Curve("a file per state", [(500, 1), (500, 200)], law=True), Curve("log with an index", [(700, 10)])],
        "Stated: 500 operations a second at most, whatever the latency, and 700 with less than 10 ms."), [
        Claim("the log goes beyond the limit of a file per state (1.4 times), with less than 10 ms",
              lambda r: (f"{_most(r, 'log') / _most(r, 'files'):.0f} times, "
                         f"{max(ms for _, ms in _load(r, 'log')):.1f} ms",
                         _most(r, "log") > 1.4 * _most(r, "files") and max(ms for _, ms in _load(r, "log")) < 10)),
    ]),
    Figure("002", "table 5.1", "Sequential and random writes", _table_51, [
        Claim("random writes to a local disk take up to hundreds of times as long as sequential ones",
              lambda r: (", ".join(f"{s}: {_factor(r, s):.0f} times" for s in _written(r)),
                         max(_factor(r, s) for s in _written(r)) >= 100),
              "their 96 MB did not fit the cache that a magnetic disk was behind; here all sizes do, the disk has no "
              "arm, and what is left is a system call per write instead of one per buffer"),
        Claim("a sync at the end changes little when the writes are random",
              lambda r: (_synced(r), _synced_share(r) < 1.3)),
    ]),
    Figure("002", "table 5.2", "What each store is good for", _table_52, [
        Claim("the log with an index pays for its writes with a costly recovery",
              lambda r: (f"{r('stores')('index_rebuild_1m_ms')} ms for a million states",
                         r("stores")("index_rebuild_1m_ms") > 1000),
              "the index is flushed beside the log, so that a restart reads the flush and the tail only"),
    ]),
]  # fmt: skip


def _hbase(r: Results) -> float:
    found = r("word_count")("latency_ms").get("hbase")
    if found is None:
        raise Missing("HBase is not among the stores of word_count; benches.stores has it where Maven could bring it")
    return float(found["write"])


def _busy(r: Results) -> str:
    ms = r("stores").values.get("index_rebuild_1m_processor_ms")
    return "" if ms is None else f" ({ms} of the processor's)"


def _rebuilt_ms(r: Results) -> float:
    """By processor time where it is known: one thread reads what is in memory."""
    return float(r("stores").values.get("index_rebuild_1m_processor_ms") or r("stores")("index_rebuild_1m_ms"))


def _flat(r: Results) -> float:
    found = r("stores").values.get("rate_1m_over_1k_by_processor_time")
    return float(found or r("stores")("rate_1m_over_1k_keys"))


def _written(r: Results) -> list[str]:
    return list(r("random_writes")("seconds", "local rnd"))


def _falls(values: Sequence[float]) -> bool:
    return values[-1] < 0.8 * values[0]


def _synced_share(r: Results) -> float:
    plain, synced = (r("random_writes")("seconds", name) for name in ("local rnd", "local rnd fsync"))
    last = list(plain)[-1]
    return float(synced[last] / plain[last])


def _synced(r: Results) -> str:
    return f"{_synced_share(r):.2f} times as long"
