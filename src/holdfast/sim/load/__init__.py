"""Participants under contracts in virtual time: the same core that runs for real.

world       cores, messages that are late, lost or repeated, hosts that crash
scenario    a random contract graph with tasks and faults, from one seed
checks      B1 to B6 and B8, judged from outside; planted: bugs that they must see
run, many   one scenario; thousands of them
"""
