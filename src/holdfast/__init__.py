"""Holdfast keeps PySpark streams on time and makes them right in the end."""
