"""Load shared between owners under contracts: the bounded-price mechanism (003, chapters 6 and 7), without I/O.

`participant.ParticipantCore` is the door: `handle(signal, now_us) -> Effects`. What it is made of:

    usage           what a task uses of each resource; what moves
    cost            what a load costs its owner; the marginal cost of one task, now and over a period (6.6, 6.7)
    contract        who may move what to whom, at which price, for how long
    choice          which tasks to offer, which to accept (figures 6-4 and 6-5)
    counter         what a seller answers when the lowest price is too low (§6.6.2)
    leases          the life of one moved task: one table of states
    ledger          who owes whom; the same on both sides
    records, book   what must survive a crash, and the state it makes
    messages        what partners say to each other
    signals         what a host tells the core; effects: what the core tells its host
    buyer, seller   the two halves of a negotiation; lease_course: periods, renewal, return
"""
