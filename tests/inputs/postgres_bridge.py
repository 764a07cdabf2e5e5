"""A process that does nothing but fill a stream from a table's changes, to be killed.

python -m tests.inputs.postgres_bridge ROOT URL TABLE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import holdfast
from holdfast.inputs.postgres_changes import PostgresChanges, postgres_changes
from holdfast.model.errors import PeerError


def bridged(url: str, table: str) -> PostgresChanges:
    return postgres_changes(url, table=table, slack="0s")


if __name__ == "__main__":
    root, url, table = sys.argv[1:]
    source = bridged(url, table)
    print("begun", flush=True)
    while True:
        try:
            source.open(holdfast.open(Path(root) / "streams").open("s"), Path(root) / "home").run()
        except PeerError:
            time.sleep(0.05)
