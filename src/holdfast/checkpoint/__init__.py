"""Protecting operator state: policies, the SafeKeeper, incremental window groups, and stores for the bytes."""
