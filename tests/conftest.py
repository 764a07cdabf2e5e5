"""For all tests: examples are judged by what comes out, not by how long a crowded machine takes to draw them.

A JVM that lives for a minute is over before its second compiler has earned what it costs; so none of the tests' has it.
Within `make test` they share an archive of classes as well (tests/suite/class_archive.py).

A process that a test forks leaves the garbage of earlier tests alone: clients of Kafka, for instance, have threads that
it does not have, and crash when they are collected there.
"""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

from tests.suite.class_archive import JVM_OPTIONS, SHORT_LIVED

settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

for variable in JVM_OPTIONS:
    os.environ.setdefault(variable, SHORT_LIVED)

os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
