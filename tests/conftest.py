"""For all tests: examples are judged by what comes out, not by how long a crowded machine takes to draw them.

A JVM that lives for a minute is over before its second compiler has earned what it costs; so none of the tests' has it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(variable, SHORT_LIVED)
