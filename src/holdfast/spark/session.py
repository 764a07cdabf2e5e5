"""Sessions with the settings that streams like, in one place and each with its reason.

`python -m benches.microbatch` measures what they are worth.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from holdfast.model.errors import StorageError
from holdfast.spark.checkpoint_place import CHECKPOINTS
from holdfast.spark.cluster_security import secured, serving
from holdfast.spark.ending import attend
from holdfast.spark.folder_marker import remove_markers
from holdfast.spark.format import HoldfastSource
from holdfast.spark.grants import AUTO, FOLDER, HOST, VARIABLE, checked_choice
from holdfast.spark.java import ensure_java
from holdfast.spark.noise import quiet_accumulators, quiet_refusals
from holdfast.spark.own_folder import own_folder
from holdfast.spark.reader_server import READER
from holdfast.spark.worker_daemon import NO_THREADS
from holdfast.stream.frame import crc32c

if TYPE_CHECKING:
    from holdfast.spark.stream_host import StreamHost

log = logging.getLogger(__name__)


class Setting(NamedTuple):
    key: str
    value: str
    why: str
    local_only: bool = False
    folders_only: bool = False
    """Not where checkpoints may lie on a filesystem of Hadoop's: with spark.holdfast.executors=host."""


SETTINGS = (
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        "The default starts some 24 processes (readlink, chmod) per batch. This one relies on rename alone, which is "
        "atomic and replaces what is there on a local disk and on any mounted POSIX filesystem. On HDFS and object "
        "stores it does not: state that a repeated batch writes is dropped there for that of its first attempt.",
        local_only=True,
        folders_only=True,
    ),
    Setting("spark.python.unix.domain.socket.enabled", "true",
            "Python workers talk over Unix sockets: saves some 40 ms per batch of TCP's delayed acknowledgements."),
    Setting("spark.sql.session.timeZone", "UTC", "stime is UTC; a local zone would shift every window."),
    Setting("spark.sql.streaming.noDataProgressEventInterval", "1s",
            "A query whose inputs have ended is stopped when Spark says that it is idle; ten seconds are long."),
    Setting("spark.sql.execution.arrow.pyspark.enabled", "true", "Rows go to and from Python by column."),
    Setting("spark.sql.python.filterPushdown.enabled", "true", "A filter on stime opens only the segments it needs."),
    Setting("spark.executorEnv.POLARS_MAX_THREADS", "1", "Every core has a task of its own; threads would only queue."),
    Setting("spark.executorEnv.MALLOC_MMAP_THRESHOLD_", "33554432",
            "A worker keeps the memory of one batch for the next: to give it back to the system and get it again, page "
            "by page, takes a third of a task. Both numbers must be said, or the C library changes the other."),
    Setting("spark.executorEnv.MALLOC_TRIM_THRESHOLD_", "67108864", "That much of it, at most."),
    Setting("spark.ui.enabled", "false", "A library should not open a port unasked; set it to true to see the UI."),
    Setting("spark.sql.ui.retainedExecutions", "50",
            "Spark keeps the plans of the last 1,000 batches, UI or not: what grows for the first hour of a stream."),
    Setting("spark.ui.retainedJobs", "100", "The same for the jobs of batches,"),
    Setting("spark.ui.retainedStages", "100", "for their stages,"),
    Setting("spark.ui.retainedTasks", "1000", "and for 100,000 of their tasks."),
    Setting("spark.ui.showConsoleProgress", "false", "Progress bars would fight with the program's own output."),
    Setting("spark.driver.bindAddress", "127.0.0.1", "Nothing is reachable from outside.", local_only=True),
    Setting("spark.driver.host", "127.0.0.1", "Names of machines need not resolve.", local_only=True),
)  # fmt: skip

#: Variables for Python that Spark's streaming reader puts into the map that all queries over a data source share, in
#: the thread of whichever query starts. Two that start at once can lose an entry and still count it; from then on every
#: task of the session fails (OptionalDataException). With the keys there from the beginning, only values change.
_WRITTEN_LATER = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(), "SPARK_AUTH_SOCKET_TIMEOUT": "15", "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}  # fmt: skip
_registering = threading.Lock()
#: Who serves the executors of an application, by its id.
_serving: dict[str, StreamHost] = {}


def session(app: str = "holdfast", *, master: str | None = None, **settings: str) -> SparkSession:
    """A SparkSession that knows the format "holdfast".

    On this machine by default, with as many shuffle partitions as cores (Spark's 200 would cost a second per batch) and
    tasks that are tried four times (`local[N]` alone gives up after one). Settings are given with underscores for dots:
    `session(spark_sql_shuffle_partitions="8")`. Queries whose streams have ended are stopped (`holdfast.spark.ending`).
    """
    return attend(build_session(app, master=master, **settings))


def build_session(app: str, *, master: str | None = None, **settings: str) -> SparkSession:
    """The same for who looks after its queries itself."""
    ensure_java()
    cores = len(os.sched_getaffinity(0))
    master = master or os.environ.get("HOLDFAST_MASTER") or f"local[{cores},4]"
    local = master.startswith("local[")
    given = {key.replace("_", "."): value for key, value in settings.items()}
    if local and CHECKPOINTS in given:  # Spark's commits are looked at by a process that must ask the driver then.
        given.setdefault("spark.holdfast.executors", HOST)
    folders = given.get("spark.holdfast.executors") != HOST
    builder = SparkSession.builder.master(master).appName(app)
    if SparkContext._active_spark_context is None:  # Queries of a session that is there already rely on their number.
        builder = builder.config("spark.sql.shuffle.partitions", str(cores))
    for setting in SETTINGS:
        if (local or not setting.local_only) and (folders or not setting.folders_only):
            builder = builder.config(setting.key, setting.value)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark reads these two from the environment, not from its settings.
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(variable, quick_python())
    for key, value in {**given, **secured(master, given)}.items():
        builder = builder.config(key, value)
    made = SparkContext._active_spark_context is None
    spark = builder.getOrCreate()
    quiet_refusals()
    if made:
        quiet_accumulators(getattr(spark.sparkContext, "_accumulatorServer", None))
    return with_format(spark)


def register(spark: SparkSession) -> SparkSession:
    """Make a session of your own know the format "holdfast", and look after its queries: those whose streams have ended
    are stopped (`holdfast.spark.ending`)."""
    return attend(with_format(spark))


def with_format(spark: SparkSession) -> SparkSession:
    """Make the format "holdfast" known to a session; on a cluster, serve its executors (`stream_host`)."""
    context = spark.sparkContext
    with _registering:
        serve_executors(spark)
        known = context.environment
        context.environment = {**_WRITTEN_LATER, **known}  # Another one: threads that plan just now go through theirs.
        try:
            with _active(spark):  # Spark looks in the active session whether the name is taken.
                spark.dataSource.register(HoldfastSource)
        finally:
            context.environment = known
    return spark


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """This session is the active one of the thread, for a while."""
    jvm = spark._jvm
    assert jvm is not None
    before = jvm.SparkSession.getActiveSession()
    make_active(spark)
    try:
        yield
    finally:
        if before.isDefined():
            jvm.SparkSession.setActiveSession(before.get())
        else:
            jvm.SparkSession.clearActiveSession()


def serve_executors(spark: SparkSession) -> None:
    """On a cluster, a way to the streams for executors that do not see their folder."""
    context = spark.sparkContext
    for id in [id for id in _serving if id != context.applicationId]:
        _serving.pop(id).close()  # Of a session that was stopped: a process has one at a time.
    settings = dict(context.getConf().getAll())
    local = str(context.master).startswith("local") and "spark.holdfast.executors" not in settings
    if local or context.applicationId in _serving:
        return
    choice = checked_choice(settings.get("spark.holdfast.executors", AUTO))
    if choice == FOLDER:
        return
    from holdfast.spark.stream_host import StreamHost  # Not for sessions on this machine: it brings a server with it.

    folder = Path(tempfile.mkdtemp(prefix="executors-", dir=own_folder()))
    note = folder / "host"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(remove_markers, note)  # Before the folder goes: the last that is registered is the first to run.
    access, advertised = serving(settings, folder)
    host = _serving[context.applicationId] = StreamHost(access, advertised, choice, note, partial(active_runs, spark))
    os.environ[VARIABLE] = context.environment[VARIABLE] = str(note)
    log.info("executors that do not see the folder of a stream are served at %s", host.address)


def active_runs(spark: SparkSession) -> set[str]:
    """The runs of streaming queries that are active, of all sessions of the application."""
    queries = spark._jsparkSession.sharedState().activeStreamingQueries()
    return {str(query.runId()) for query in dict(queries).values()}


def make_active(spark: SparkSession) -> None:
    """Spark looks formats up in the session of the calling thread, and a new thread has none."""
    jvm = spark._jvm
    assert jvm is not None
    jvm.SparkSession.setActiveSession(spark._jsparkSession)


def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """The same session with other settings, for one query: a query takes them from the session that starts it."""
    cloned = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for key, value in settings.items():
        cloned.conf.set(key, value)
    return cloned


def moved_to(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The same query, to be started in another session, whose queries the listeners of its own are to hear of, too."""
    own, other = frame.sparkSession._jsparkSession.streams(), session._jsparkSession.streams()
    known = list(other.listListeners())
    for listener in own.listListeners():
        if listener not in known:
            other.addListener(listener)
    jvm = session._jvm
    assert jvm is not None
    plan = frame._jdf.queryExecution().analyzed()
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def has_ended(spark: SparkSession) -> bool:
    """Whether nothing can be run with a session any more: its JVM is gone, or its context was stopped."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return True
    try:
        context = spark.sparkContext
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # Whatever a call into a JVM that is just going raises.
        return True


def quick_python() -> str:
    """An interpreter for Python workers that skips Spark's zipped copy of pyspark, and forks where Spark would import.

    Spark puts pyspark.zip in front of the path; modules in a zip are compiled anew in every process, which costs 0.7 s
    for each query that starts. The installed pyspark is the same code with its bytecode at hand.
    """
    try:
        folder = own_folder()
    except StorageError:
        return sys.executable  # Somebody else made the folder: what lies there is not ours to run.
    settings = "".join(f'export {name}="${{{name}:-{value}}}"\n' for name, value in NO_THREADS.items())
    client = Path(__file__).with_name("reader_client.py")
    text = (
        "#!/bin/sh\n"
        "PYTHONPATH=$(printf %s \"$PYTHONPATH\" | tr ':' '\\n'"
        " | grep -v -e 'pyspark\\.zip$' -e 'py4j-.*\\.zip$' | paste -sd: -)\n"
        "export PYTHONPATH\n"
        f"{settings}"
        f'client() {{ exec "{sys.executable}" -I -S "{client}" "$0.$PPID" "{sys.executable}" -m "$@"; }}\n'
        'case "$1 $2 $3" in\n'
        '"-m pyspark.daemon "|"-m pyspark.daemon pyspark.worker")'
        f' shift 2; exec "{sys.executable}" -m holdfast.spark.worker_daemon "$@";;\n'
        '"-m pyspark.daemon "*) shift 2; client holdfast.spark.worker_daemon "$@";;\n'
        f'"-m {READER} "*) shift; client "$@";;\n'
        "esac\n"
        f'exec "{sys.executable}" "$@"\n'
    )
    script = folder / f"python-{crc32c(text.encode()):08x}"  # Another version of Holdfast has one of its own.
    with contextlib.suppress(OSError):
        if not script.exists() or script.read_text() != text:
            temporary = script.with_suffix(f".{os.getpid()}")
            temporary.write_text(text)
            temporary.chmod(0o700)
            temporary.rename(script)
        return str(script)
    return sys.executable
