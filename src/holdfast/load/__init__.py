"""Load between owners, for real: what contracts are worth, and the load managers of hosts that move running nodes.

planner, chance, worth   how many contracts to make, at which price
terms           the paper that an owner has signed: partners, contracts, capacity
manager         runs the core (`protocol.load`) beside a host; journal: what it must not forget
census, meter   what runs here, and what each task uses
words, wire     what managers say to each other, and how; partner: the way to one; door: who may ask what
tasks           own nodes and guests; relay: how a guest reaches its inputs
mover           the movement, step by step; parcel: what travels; away: what stands for a task that is elsewhere
patience        how long a partner is waited for
overview, history        what people see
steps           the points at which a test may kill a movement
"""
