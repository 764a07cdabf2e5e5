"""The application of the demonstration: connections per source and second, over three monitors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast
from holdfast.demo.monitors import MONITORS

OUTPUT = "active_sources"


def active_sources(connections: Any) -> Any:
    """Ordinary PySpark: it knows nothing of failures."""
    from pyspark.sql import functions as F

    return (
        connections.groupBy(F.window("stime", "1 second"), "source")
        .agg(F.count("*").alias("connections"), F.sum("bytes").alias("bytes"))
    )  # fmt: skip


def build(root: Path, max_delay: str) -> holdfast.App:
    """One node over three inputs."""
    app = holdfast.App("netmon", root=root)
    app.node(inputs=MONITORS, output=OUTPUT, max_delay=max_delay)(active_sources)
    return app
