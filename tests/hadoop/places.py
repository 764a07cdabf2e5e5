"""Where the tests have checkpoints: a local folder, HDFS, and S3 through S3A."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hadoop import s3a
from tests.hadoop.hdfs_server import hdfs_server
from tests.hadoop.hdfs_server import unavailable as no_hdfs
from tests.s3_server import ENVIRONMENT, S3Server

LOCAL, HDFS, S3 = "local", "hdfs", "s3"
BUCKET = "checkpoints"


def unavailable(place: str) -> str | None:
    """Why there can be no checkpoints there."""
    if place == HDFS:
        return no_hdfs()
    if place == S3 and s3a.JARS.jars() is None:
        return "no S3A here; `python -m tests.hadoop.s3a --fetch` brings it from Maven"
    return None


class Places:
    """The servers that can be had here, each started when it is first asked for."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._addresses: dict[str, str] = {LOCAL: str(folder)}
        self.s3: S3Server | None = None
        self.s3_log = folder / "s3.log"

    def at(self, place: str) -> str:
        """What addresses of checkpoints begin with there."""
        if (why := unavailable(place)) is not None:
            pytest.skip(why)
        if place == HDFS and HDFS not in self._addresses:
            self._addresses[HDFS] = f"{self._stack.enter_context(hdfs_server()).address}/checkpoints"
        if place == S3 and S3 not in self._addresses:
            self._started_s3()
            self._addresses[S3] = f"s3a://{BUCKET}"
        return self._addresses[place]

    def _started_s3(self) -> S3Server:
        if self.s3 is None:
            self.s3 = S3Server(str(self.s3_log))
            self._stack.callback(self.s3.stop)
            self.s3.make_bucket(BUCKET)
        return self.s3

    def settings(self) -> dict[str, str]:
        """Of a session that is to reach all of them."""
        given = {
            "spark.holdfast.executors": "host",
            # With a single data node, the end of a file is often asked for a moment too soon; 400 ms are long.
            "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
        }
        jars = s3a.JARS.jars()
        if jars is not None:
            given |= s3a_settings(self._started_s3().endpoint, jars)
        return given


def s3a_settings(endpoint: str, jars: Path) -> dict[str, str]:
    own = {
        "endpoint": endpoint, "path.style.access": "true", "endpoint.region": ENVIRONMENT["AWS_REGION"],
        "access.key": ENVIRONMENT["AWS_ACCESS_KEY_ID"], "secret.key": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        "connection.ssl.enabled": "false",
    }  # fmt: skip
    return {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in own.items()},
    }


@contextlib.contextmanager
def places(folder: Path) -> Iterator[Places]:
    with contextlib.ExitStack() as stack:
        yield Places(folder, stack)
