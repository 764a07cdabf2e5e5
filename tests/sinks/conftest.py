"""A PostgreSQL server of our own, once for all tests of sinks."""

from tests.operators.test_database import postgres

__all__ = ["postgres"]
