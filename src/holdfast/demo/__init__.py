"""The demonstration that `make demo` runs: three monitors, one Spark query, nothing else to install."""
