"""DPC: delay, process and correct (003 chapter 4), by branching the stream and forking the query.

A host builds a `NodeCore` from a `NodePlan` and what it finds on disk (`Resume`), tells it facts (`signals`) and
carries out what it answers (`effects`). A client does the same with `ClientCore`. Nothing here does I/O or knows the
time.
"""

from holdfast.protocol.dpc.client import ClientCore, ClientEffects
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import (
    ClientPlan,
    Full,
    InputPlan,
    NodePlan,
    OutputPlan,
    Policy,
    Resume,
    Stabilise,
)

__all__ = [
    "ClientCore",
    "ClientEffects",
    "ClientPlan",
    "Full",
    "InputPlan",
    "NodeCore",
    "NodePlan",
    "OutputPlan",
    "Policy",
    "Resume",
    "Stabilise",
]
