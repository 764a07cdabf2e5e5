"""Tiered streams: sealed segments go to an object store; the disk keeps what is recent."""
