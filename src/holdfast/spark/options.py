"""The options of `format("holdfast")`, read in one place and refused in one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from holdfast.model.errors import UsageError
from holdfast.model.time import instant_us
from holdfast.stream.store import Stream, StreamStore

#: Names in lower case, as Spark hands them over without regard to case.
READ_OPTIONS = {
    "root": "folder of the streams (default: the variable HOLDFAST_ROOT)",
    "path": "names of the streams, separated by commas; what load() takes",
    "streams": "the same, as an option",
    "start": "begin of the range, or where a streaming query starts: 'beginning', 'live' or a time",
    "end": "end of the range (exclusive; batch reads)",
    "startbucket": "begin of the range as a bucket number",
    "endbucket": "end of the range as a bucket number (exclusive; batch reads)",
    "maxrowsperbatch": "admission control by tuples",
    "maxbytesperbatch": "admission control by bytes (default 256 MiB)",
    "tasks": "largest number of tasks a read is split into (default 32)",
    "boundaries": "'before' or 'exact': append a BOUNDARY row that drives the watermark",
    "marks": "number of partitions that get a row each for the begin and the end of a batch (stages of operators)",
    "stage": "an operator that reads the streams itself; set by Holdfast's own operators",
    "restore": "what a stage needs when its state is lost, as JSON; set by Holdfast's own operators",
    "tentative": "'true': one stream with its tentative branch, UNDO and REC_DONE as rows (see tuple_type)",
    "streamcolumn": "'true': add the column `stream` (default: when several streams are read)",
    "roots": "JSON list: the folder of each stream where they lie in several (set by hosts)",
    "step": "microseconds of stime: a streaming query reads one such step in a batch (set by hosts)",
    "timers": "with step, 'true': a batch without tuples follows each step (set by hosts)",
    "decision": "file that says how far a streaming query may read (set by hosts)",
    "plan": "file that says what a fork is to read (set by hosts)",
    "subscriber": "name under which finished batches are acknowledged to retention",
}
WRITE_OPTIONS = {
    "root": READ_OPTIONS["root"],
    "path": "name of the stream; what start() takes",
    "stream": "the same, as an option",
    "stime": "column or window that gives stime (default: `stime`, else the one with event time)",
    "boundary": "'auto', 'input', 'watermark' or 'data': what the output boundary follows",
    "slack": "with boundary 'data': how far it trails the largest stime",
    "maxahead": "with boundary 'data', and of a frame: how far stime may lie ahead of the clock (1h; 'none': any)",
    "lag": "with boundary 'watermark': how far results may lie behind it (the reach of a join)",
    "late": "'refuse' (default), 'drop' or 'lift': what becomes of a result below the boundary (set by hosts)",
    "deadletters": "file for rows that the stream cannot take: late, early, without a time, unfit (set by hosts)",
    "putaside": "file that counts such rows, and keeps them until they are in deadLetters (set by hosts)",
    "create": "'true': create the stream if it does not exist",
    "bucket": "bucket size of a stream created so",
    "branch": "id of the tentative branch to write to instead of main (set by hosts)",
    "waiting": "file with what the branch lacks of earlier results when it begins (set by hosts)",
    "from": "results before this time are left out (set by hosts after a hole in an input)",
    "checkpointlocation": "Spark's own",
    "queryname": "Spark's own",
}


class Options:
    """Typed access to a data source's options."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._given = {k.lower(): v for k, v in given.items()}
        unknown = sorted(set(self._given) - set(known))
        if unknown:
            raise UsageError(f"format holdfast knows the options {', '.join(known)}; got also {', '.join(unknown)}")

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name, default)

    @property
    def store(self) -> StreamStore:
        root = self.get("root") or os.environ.get("HOLDFAST_ROOT")
        if root is None:
            raise UsageError("say where the streams are: .option('root', 'streams/') or the variable HOLDFAST_ROOT")
        return StreamStore(root)

    @property
    def streams(self) -> list[Stream]:
        """The streams to read, stripes for a striped one, each from the folder it lies in."""
        names, roots = self.names("streams"), self.get("roots")
        if roots is None:
            store = self.store
            return [stream for name in names for stream in store.open_all(name)]
        return [StreamStore(root).open(name) for name, root in zip(names, json.loads(roots), strict=True)]

    def names(self, option: str) -> list[str]:
        text = self.get(option) or self.get("path") or ""
        return [name.strip() for name in text.split(",") if name.strip()]

    def integer(self, name: str, default: int | None = None) -> int | None:
        text = self.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"option {name} must be a whole number; got {text!r}") from None
        if value < 1 and "bucket" not in name:
            raise UsageError(f"option {name} must be 1 or more; got {value}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        text = self.get(name)
        if text is not None and text.lower() not in ("true", "false"):
            raise UsageError(f"option {name} must be true or false; got {text!r}")
        return default if text is None else text.lower() == "true"

    def choice(self, name: str, *allowed: str) -> str | None:
        text = self.get(name)
        if text is not None and text not in allowed:
            raise UsageError(f"option {name} must be one of {', '.join(allowed)}; got {text!r}")
        return text

    def instant(self, name: str) -> int | None:
        text = self.get(name)
        return None if text is None else instant_us(text)
