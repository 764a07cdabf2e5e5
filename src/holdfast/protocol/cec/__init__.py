"""Continuous eventual checkpoints (000 ch. 4, 001): window by window, in the operator's own output.

`policy` decides when windows are saved, `ledger` keeps the books of one operator tuple by tuple and says which records
to write, `recovery` finds the eventual checkpoint in records that are read backwards. The stage on Spark follows the
same rules for whole columns of windows at a time (`holdfast.operators.footprints`).
"""

from holdfast.protocol.cec.ledger import Closed, Ledger, Opened, Record, RecordKind, Tick
from holdfast.protocol.cec.policy import Continuous, Measured, Shot, continuous
from holdfast.protocol.cec.recovery import BackwardScan, EventualCheckpoint

__all__ = ["BackwardScan", "Closed", "Continuous", "EventualCheckpoint", "Ledger", "Measured", "Opened", "Record",
           "RecordKind", "Shot", "Tick", "continuous"]  # fmt: skip
