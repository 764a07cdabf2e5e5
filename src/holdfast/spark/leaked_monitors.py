"""Ends the threads that Spark leaves in its JVM for every query over a source in Python that it starts.

Each `PythonWorkerFactory` begins a thread that looks after idle workers every ten seconds, for ever, also when the
factory was stopped; and each query has a factory of its own for its reader.

1. Only factories that fork their workers from a daemon have idle ones. The thread of any other has nothing to do and
   is ended: it sleeps, so it is interrupted. What it would print of that goes nowhere.
2. To go through all threads of a JVM takes some hundred calls. So they are counted from outside, by their names, and
   looked at when there are a few more than were left the last time.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

#: As Java names them, and as much of it as the system keeps.
_NAME, _SEEN_NAME = "Idle Worker Monitor for ", "Idle Worker Mon"
_CLASS = "org.apache.spark.api.python.PythonWorkerFactory$MonitorThread"
#: So many more are left alone (rule 2).
MONITORS_MORE = 8

_ending = threading.Lock()
_left: dict[int, int] = {}
"""How many there were after the last look, by the JVM's process."""


def end_monitors(spark: SparkSession) -> int:
    """End the threads that have nothing to do, if there are many, and say how many those were."""
    jvm = spark._jvm
    assert jvm is not None
    with _ending:
        pid = int(jvm.java.lang.ProcessHandle.current().pid())
        seen = count_monitors(pid)
        if seen <= _left.get(pid, 0) + MONITORS_MORE:
            return 0
        idle = [thread for thread in _monitors(spark) if not _outer(thread).useDaemonEnabled()]
        if idle:
            handler = jvm.java.lang.Class.forName("java.lang.Thread$UncaughtExceptionHandler")
            unheard = jvm.java.beans.EventHandler.create(handler, jvm.java.util.ArrayList(), "size")
            for thread in idle:
                thread.setUncaughtExceptionHandler(unheard)
                thread.interrupt()
        _left.clear()  # A process has one JVM at a time.
        _left[pid] = seen - len(idle)
        return len(idle)


def count_monitors(pid: int) -> int:
    found = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += Path(f"/proc/{pid}/task/{task}/comm").read_text().startswith(_SEEN_NAME)
    except OSError:  # Not a system with /proc, or a thread that has just ended: there will be another look.
        pass
    return found


def _monitors(spark: SparkSession) -> list[Any]:
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    group = jvm.java.lang.Thread.currentThread().getThreadGroup()
    while (parent := group.getParent()) is not None:
        group = parent
    threads = gateway.new_array(jvm.java.lang.Thread, 2 * group.activeCount())
    named = [threads[n] for n in range(group.enumerate(threads)) if threads[n].getName().startswith(_NAME)]
    return [thread for thread in named if thread.getClass().getName() == _CLASS]


def _outer(monitor: Any) -> Any:
    return monitor.getClass().getField("$outer").get(monitor)
