"""The query of `federation.COUNTS` in plain Python, where Spark would run it: for killing hosts hundreds of times.

It does what Spark does, as far as a movement can see: batches of whole buckets as decided by the controller, a log of
offsets before each and of commits after it, a version of the state for each, results through the same sink. A batch
whose offsets are there and whose commit is not is done again. Everything else in a host that runs it is the real thing.

    python -m tests.load.plain_engine FILE NAME        # as `holdfast host FILE NAME`
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast.host.deployed
import holdfast.host.host
import holdfast.load.tasks
from holdfast.cli.main import app
from holdfast.clock import pause
from holdfast.model.errors import StorageError
from holdfast.model.schema import STIME_TYPE
from holdfast.model.time import BEGINNING_US, duration_text, instant_text
from holdfast.spark.beginning import load_beginning
from holdfast.spark.fork import last_commit
from holdfast.spark.node import NodeQueries, progress_after
from holdfast.spark.sink import Target
from holdfast.spark.source import offset_of, until_of
from holdfast.stream.decision import Decision
from holdfast.stream.disk import Disk
from holdfast.stream.merge import Merge, PieceReader
from holdfast.stream.store import Stream, StreamStore

SECOND = 1_000_000
_WINDOW = pa.struct([("start", STIME_TYPE), ("end", STIME_TYPE)])
SCHEMA = pa.schema([("window", _WINDOW), ("source", pa.string()), ("n", pa.int64()), ("bytes", pa.int64())])


class PlainQuery(threading.Thread):
    """One run of the query."""

    def __init__(self, inputs: Sequence[Stream], decision: Path, checkpoint: Path, sink: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._merge, self._decision, self.checkpoint = Merge(inputs), Decision(decision), checkpoint
        self._target = Target({**sink, "checkpointlocation": str(checkpoint)}, SCHEMA)
        self._run_id = str(uuid.uuid4())
        for name in ("offsets", "commits", "state/0/0"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        if not (checkpoint / "metadata").exists():
            Disk().replace_file(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        self._id = json.loads((checkpoint / "metadata").read_text())["id"]
        self._end = threading.Event()
        self._trouble: BaseException | None = None
        self.lastProgress: dict[str, Any] | None = None
        self.start()

    isActive = property(threading.Thread.is_alive)

    def exception(self) -> BaseException | None:
        return self._trouble

    def stop(self) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        try:
            batch = last_commit(self.checkpoint)
            until = BEGINNING_US if batch < 0 else self._planned(batch)
            state = json.loads((self.checkpoint / f"state/0/0/{batch + 1}.snapshot").read_text()) if batch >= 0 else {}
            while not self._end.is_set():
                to = self._planned(batch + 1)
                if to is None:
                    self._merge.refresh()
                    to = min(self._decision.until_us, self._merge.complete_until_us)
                    if to <= until and batch >= 0:
                        pause(20_000)
                        continue
                    to = max(to, until)
                    line = json.dumps(offset_of(to))
                    self._write(f"offsets/{batch + 1}", f'v1\n{{"batchWatermarkMs":0}}\n{line}\n')
                batch += 1
                state = self._batch(batch, until, to, state)
                until = to
        except BaseException as error:
            self._trouble = error

    def _planned(self, batch: int) -> Any:
        path = self.checkpoint / "offsets" / str(batch)
        return until_of(json.loads(path.read_text().splitlines()[2])) if path.exists() else None

    def _write(self, name: str, text: str) -> None:
        path = self.checkpoint / name
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text)
        temporary.rename(path)

    def _batch(self, batch: int, since: int, until: int, state: dict[str, list[int]]) -> dict[str, list[int]]:
        reader = PieceReader(self._merge.sources, stream_column=False)
        self._merge.refresh()
        rows, state = 0, {key: list(value) for key, value in state.items()}
        for part in reader.read(self._merge.pieces(since, until), since, until):
            stimes = part.column("stime").cast(pa.int64()).to_pylist()
            for at, source, size in zip(stimes, part["source"].to_pylist(), part["bytes"].to_pylist(), strict=True):
                both = state.setdefault(f"{at // SECOND * SECOND} {source}", [0, 0])
                both[0] += 1
                both[1] += size
                rows += 1
        reader.close()
        ready = [key for key in state if int(key.split()[0]) + SECOND <= until]
        self._file(batch, until, [(int(key.split()[0]), key.split()[1], *state.pop(key)) for key in ready])
        self._write(f"state/0/0/{batch + 1}.snapshot", json.dumps(state))
        self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        progress = {"batchId": batch, "numInputRows": rows + 1, "stateOperators": []}
        offsets = {"startOffset": json.dumps(offset_of(since)), "endOffset": json.dumps(offset_of(until))}
        self.lastProgress = {**progress, "sources": [offsets], "durationMs": {"triggerExecution": 1}}
        return state

    def _file(self, batch: int, until: int, found: list[tuple[Any, ...]]) -> None:
        windows = pa.array([{"start": at, "end": at + SECOND} for at, *_ in found], _WINDOW)
        columns = [windows, *(pa.array([row[i] for row in found], SCHEMA.field(i).type) for i in (1, 2, 3))]
        results = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        message = self._target.take(iter([results]), self._id, self._run_id, str(batch))
        self._target.append([message], until, self._id, self._run_id, batch)


class PlainQueries(NodeQueries):
    """What a controller asks for, without Spark."""

    def __init__(self, spark: None, node: Any, inputs: Sequence[Stream], outputs: Path, home: Path) -> None:
        self._node, self._inputs, self._outputs, self._home = node, tuple(inputs), outputs, home
        self._beginning, self._flow = load_beginning(home), None

    def create_output(self, bucket_us: int) -> Stream:
        store = StreamStore(self._outputs)
        return store.create(self._node.output, SCHEMA, bucket=duration_text(bucket_us), exist_ok=True)

    def start_stable(self) -> Any:
        first = self._beginning.right_from_us
        sink = {"root": str(self._outputs), "path": self._node.output}
        return PlainQuery(self._inputs, self.decision, self.checkpoint,
                          sink if first is None else {**sink, "from": instant_text(first)})  # fmt: skip

    def progress(self, since: int, checkpoint: Path | None = None) -> Any:
        return progress_after(checkpoint or self.checkpoint, since)

    def start_fork(self, fork: int) -> Any:
        raise StorageError("the plain engine has no forks")


def main() -> None:
    for module in (holdfast.host.host, holdfast.load.tasks):
        module.NodeQueries = PlainQueries  # type: ignore[attr-defined]
    holdfast.host.deployed.node_session = lambda *given, **settings: None  # type: ignore[assignment, return-value]
    app(["host", *sys.argv[1:]])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
