"""Frozen values that every other part shares: errors, names, time, tuples, schemas, positions.

This package imports the standard library and (in `schema`) pyarrow, nothing else.
"""
