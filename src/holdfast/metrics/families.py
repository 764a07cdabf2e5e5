"""Every metric that a host serves: its name, kind, labels, and what it says. docs/metrics.md has the same table.

Rules:
1. Names follow Prometheus: base units (`_seconds`, `_bytes`), `_total` for what only grows, a timestamp is one of the
   stream's time. What only grows begins at 0 with the process, or with the replica when that is set up again.
2. A state is one series per state, 1 for the one that holds and 0 for the others, so that rules can wait for each.
3. What is not known is not served: a series that is missing is not 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: What `holdfast_replica_state` may say: the words of `holdfast status`.
REPLICA_STATES = ("WAITING", "RECOVERING", "STABLE", "UP_FAILURE", "STABILIZATION", "FAILED", "AWAY", "DRAINED")
FORK_STATES = ("none", "preparing", "ready", "running")
SINK_STATES = ("STARTING", "RUNNING", "WAITING", "FAILED", "ENDED", "STOPPED")
SOURCE_STATES = SINK_STATES
LEASE_STATES = ("committing", "moving", "running", "returning", "ending")


class Family(NamedTuple):
    """One metric."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, labels: str, help: str) -> Family:
    return Family(f"holdfast_{name}", "gauge", tuple(labels.split()), help)


def _counter(name: str, labels: str, help: str) -> Family:
    assert name.endswith("_total"), name
    return Family(f"holdfast_{name}", "counter", tuple(labels.split()), help)


_REPLICA = "node replica"
_INPUT = "node replica stream"

_HOST = (
    _gauge("host_info", "host version", "1, with the host's name and the version that it runs."),
    _gauge("host_ready", "", "1 if every node of the host has started and none has failed, as /readyz says."),
    _gauge("host_disk_bytes", "", "Size of the file system on which the streams lie."),
    _gauge("host_disk_free_bytes", "", "Of that, what is free for us."),
    _gauge("host_links_cut", "", "Links that somebody has cut by hand (`holdfast fail`)."),
)
_REPLICAS = (
    _gauge("replica_state", f"{_REPLICA} state", "1 for the state that the replica is in, 0 for the others."),
    _gauge("replica_state_age_seconds", _REPLICA, "For how long it has been in that state."),
    _counter("replica_state_seconds_total", f"{_REPLICA} state", "Time spent in each state."),
    _gauge("replica_max_delay_seconds", _REPLICA, "X, the most that a failure may add to latency (`max_delay`)."),
    _gauge("replica_delay_used_ratio", _REPLICA,
           "Share of X that was added to the latency of the last results, or that the oldest bucket without results "
           "has used up so far. Above 1 the promise is broken."),
    _gauge("replica_result_wait_seconds", _REPLICA,
           "The longest that a bucket of the last batch waited, from its first tuple here to its results in the log."),
    _gauge("replica_usual_wait_seconds", _REPLICA, "The same in quiet times, which is not counted against X."),
    _counter("replica_results_total", f"{_REPLICA} kind in_time",
             "Buckets whose first results were written: `kind` stable or tentative, `in_time` yes or no by X."),
    _counter("replica_tentative_tuples_total", _REPLICA, "Tentative tuples that were written."),
    _gauge("replica_tentative_tuples", _REPLICA, "Of those, what stands and waits for its correction."),
    _counter("replica_corrected_tuples_total", _REPLICA, "Of those, what was undone and replaced by main."),
    _counter("replica_corrections_total", _REPLICA, "Corrections that came to their end (REC_DONE)."),
    _counter("replica_correction_seconds_total", _REPLICA, "Time from their beginning to their end."),
    _gauge("replica_stable_timestamp_seconds", _REPLICA, "The stable query has consumed its inputs up to here."),
    _gauge("replica_lag_seconds", _REPLICA, "Input that is complete and not consumed yet, in the stream's time."),
    _gauge("replica_blocked", _REPLICA, "1 while it waits for readers that have to acknowledge (`capacity`)."),
    _counter("replica_dropped_seconds_total", _REPLICA,
             "Output that was let go of before every reader had acknowledged it (`keep_last`), in the stream's time."),
    _counter("replica_gaps_total", _REPLICA, "Times that it went on behind input that was gone (`convergent`)."),
    _gauge("replica_checkpoint_extent_seconds", _REPLICA,
           "Input that would be read again to restore the state of Holdfast's own operators, in the stream's time; "
           "where there are any."),
    _gauge("replica_recovery_estimate_seconds", _REPLICA,
           "How long that would take, loading the open windows included: by what the operator has measured, or the "
           "extent times what a second of input takes the query. Starting the query comes on top."),
    _gauge("replica_recovery_goal_seconds", _REPLICA, "What was asked for (`recover_within`), where it was."),
    _gauge("replica_recovery_last_seconds", _REPLICA, "What the last recovery took, where there was one."),
    _gauge("replica_checkpoint_windows", _REPLICA, "Open windows that would be loaded (N)."),
    _gauge("replica_checkpoint_period_seconds", _REPLICA,
           "How often a window that is open for long is saved (T), in the stream's time."),
    _gauge("replica_checkpoint_records", f"{_REPLICA} kind",
           "Records that checkpoints wrote with the last batch: `kind` gopen, gcheck or r."),
    _gauge("replica_checkpoint_bytes", _REPLICA, "Their size."),
)  # fmt: skip
_QUERIES = (
    _counter("query_batches_total", _REPLICA, "Batches that the stable query has committed since the node began."),
    _counter("query_restarts_total", _REPLICA, "Times that the stable query stopped by itself."),
    _gauge("query_batch_seconds", _REPLICA, "How long its last batch took."),
    _gauge("query_batch_part_seconds", f"{_REPLICA} part", "The same by part, as the engine tells it."),
    _gauge("query_batch_tuples", _REPLICA, "Tuples that its last batch read."),
    _gauge("query_state_bytes", _REPLICA, "State that it holds in memory, as the engine tells it."),
    _counter("query_seen_batches_total", _REPLICA,
             "Batches that the next three are about: every one since somebody first asked for these numbers."),
    _counter("query_seconds_total", _REPLICA, "How long they took."),
    _counter("query_part_seconds_total", f"{_REPLICA} part", "The same by part, as the engine tells it."),
    _counter("query_tuples_total", _REPLICA, "Tuples that they read."),
)  # fmt: skip
_FORKS = (
    _gauge("fork_state", f"{_REPLICA} state", "1 for the state that the replica's fork is in, 0 for the others."),
    _counter("fork_started_total", _REPLICA, "Forks that were begun."),
    _counter("fork_failed_total", _REPLICA, "Forks that did not start in time, or died."),
    _counter("fork_ready_total", _REPLICA, "Forks that came to be ready."),
    _counter("fork_start_seconds_total", _REPLICA, "Time that those took until they were ready."),
    _counter("fork_seconds_total", _REPLICA, "Time that forks were kept, from their beginning to their end."),
)
_INPUTS = (
    _gauge("input_failing", _INPUT, "1 while no stable producer of the input is known."),
    _gauge("input_boundary_timestamp_seconds", _INPUT, "What the input promises: nothing before this comes any more."),
    _gauge("input_boundary_age_seconds", _INPUT, "Since when the boundary has not moved, as seen here."),
    _gauge("input_behind_seconds", _INPUT, "How far the boundary lies behind this machine's clock."),
    _gauge("input_lag_seconds", _INPUT, "What the input promises and the stable query has not consumed yet."),
)
_STREAMS = (
    _gauge("stream_bytes", "stream", "Size of a stream's log on this host."),
    _gauge("stream_tuples", "stream", "Tuples that it holds."),
    _gauge("stream_boundary_timestamp_seconds", "stream", "Its boundary."),
    _gauge("stream_closed", "stream", "1 once it has ended for good."),
    _gauge("stream_bound_bytes", "stream", "How large it may become, where that is bounded."),
    _counter("stream_removed_tuples_total", "stream", "Tuples that retention has removed since it was made."),
    _counter("stream_removed_bytes_total", "stream", "Their bytes."),
    _gauge("stream_retention_waiting", "stream",
           "1 if retention could not remove all that it should, because a reader or an operator may need it."),
    _gauge("stream_archived_bytes", "stream", "What its archive has, where it has one."),
    _gauge("stream_archived_tuples", "stream", "Its tuples."),
    _gauge("stream_archive_waiting_bytes", "stream", "Sealed, and not archived yet."),
    _gauge("stream_archive_lag_seconds", "stream",
           "Since when the oldest of that has been waiting; 0 if nothing does."),
    _gauge("stream_archive_failing", "stream", "1 if the last attempt to archive failed."),
    _counter("stream_archive_errors_total", "stream", "Attempts that failed since the stream was made."),
    _gauge("stream_unreadable", "stream", "1 if the log cannot be read; then nothing else of it is served."),
)  # fmt: skip
_STORES = (
    _gauge("store_waiting", "store", "Checkpoints of this process that wait for their store (SafeKeeper)."),
    _gauge("store_away", "store", "1 while a store cannot be written."),
    _counter("store_checkpoints_total", "store outcome", "Checkpoints by how they ended; `dropped`: no room."),
    _counter("store_retries_total", "store", "Attempts to write that failed and were made again."),
    _counter("checkpoint_deadlines_total", "operator kept",
             "Deadlines of a policy of time in this process: `kept` met or missed."),
    _counter("operator_checkpoints_total", f"{_REPLICA} operator outcome",
             "Checkpoints of an operator in the engine's workers: `outcome` durable, or dropped if the store did not "
             "take it."),
    _gauge("operator_checkpoints_waiting", f"{_REPLICA} operator",
           "Its partitions whose checkpoint was handed over and is not in the store yet."),
    _gauge("operator_checkpoint_bytes", f"{_REPLICA} operator", "The newest checkpoint of each partition, together."),
    _counter("operator_deadlines_total", f"{_REPLICA} operator kept",
             "Deadlines of its policy of time: `kept` met or missed."),
    _gauge("operator_deadline_late_seconds", f"{_REPLICA} operator", "By how much the latest of them was late."),
    _gauge("operator_restore_seconds", f"{_REPLICA} operator",
           "How long its state last took to come back from its store, where it had to."),
)  # fmt: skip
_SINKS = (
    _gauge("sink_state", "sink stream state", "1 for the state that the sink is in, 0 for the others."),
    _counter("sink_rows_total", "sink stream", "Rows that were written to the target, corrections included."),
    _gauge("sink_lag_seconds", "sink stream", "What the target lacks of the stream, in the stream's time."),
    _counter("sink_errors_total", "sink stream", "Attempts that failed."),
)
_SOURCES = (
    _gauge("source_state", "stream state", "1 for the state that the source is in, 0 for the others."),
    _counter("source_rows_total", "stream", "Rows that it brought since it was last opened."),
    _counter("source_late_rows_total", "stream", "Of those, rows that came after their bucket was closed."),
    _counter("source_dead_rows_total", "stream", "Records that did not fit and were put aside."),
    _gauge("source_lag_records", "stream", "Records that are there and were not read yet, where the source says it."),
    _gauge("source_lag_bytes", "stream", "Bytes of the source's log that were not read yet, where it has one."),
    _counter("source_errors_total", "stream", "Times that it failed and was opened anew, and errors that it passed."),
)
_LOAD = (
    _gauge("load_used", "resource", "What the tasks of this host use: cores, MB/s, GiB."),
    _gauge("load_capacity", "resource", "What the host has of it."),
    _gauge("load_cost", "", "What that load costs its owner, by the cost function of the contracts' file."),
    _counter("load_movements_total", "direction", "Tasks that moved: `out` to a partner, `back` home."),
    _counter("load_failed_movements_total", "", "Movements that did not come about."),
    _gauge("contract_agreed", "contract partner role", "1 if the partner has signed the same clauses."),
    _gauge("contract_price", "contract partner role bound", "The range of unit prices: `bound` low or high."),
    _gauge("contract_paid_price", "contract partner role", "The highest unit price of its leases."),
    _gauge("contract_load", "contract partner role", "Load that its leases are about."),
    _gauge("contract_leases", "contract partner role state", "Leases in each state."),
    _gauge("contract_unpaid_periods", "contract partner role",
           "Periods of its leases that have begun and are not paid for, of the lease that is furthest behind."),
    _gauge("contract_paid", "contract partner role", "What its leases have come to so far."),
    _gauge("partner_balance", "partner", "What the partner owes us; below 0, what we owe it."),
)  # fmt: skip

FAMILIES = {
    family.name: family
    for family in (*_HOST, *_REPLICAS, *_QUERIES, *_FORKS, *_INPUTS, *_STREAMS, *_STORES, *_SINKS, *_SOURCES, *_LOAD)
}
