"""Participants under contracts in virtual time: the same core that runs for real (`world`), and a quick copy of its
decisions for many thousands of them (`levels`), which a test holds to the core move by move.

    topology    contract graphs, capacities and loads of 003 §7.1.2
    levels      the quick one: loads are whole tasks, prices are load levels (§7.1.2)
    dynamic     tasks that come and go, leases that end (§7.1.5)
    world       cores, messages that are late, lost or repeated, hosts that crash
    scenario    a random contract graph with tasks and faults, from one seed
    checks      B1 to B6 and B8, judged from outside; planted: bugs that they must see
    run, many   one scenario; thousands of them
"""
