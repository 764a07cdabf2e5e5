"""Continuous eventual checkpoints (000 ch. 4, 001): window by window, in the operator's own output.

`policy` decides when windows are saved. The stage on Spark keeps the books for whole columns of windows at a time
(`holdfast.operators.footprints`); tests keep them tuple by tuple, as the texts do, and compare.
"""

from holdfast.protocol.cec.policy import Continuous, Measured, Shot, continuous

__all__ = ["Continuous", "Measured", "Shot", "continuous"]
