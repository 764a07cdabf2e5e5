"""One deterministic simulator: whole diagrams of protocol cores under virtual time, with faults and checkers.

Everything that happens follows from the seed: the same seed gives the same trace, whatever the machine, the Python hash
seed or the number of processes.
"""
