"""For all tests: examples are judged by what comes out, not by how long a crowded machine takes to draw them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")
