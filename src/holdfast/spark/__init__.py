"""Holdfast on Spark: the only package that imports pyspark.

`session` makes a SparkSession with the settings that streams like; `register` adds the format "holdfast" to one that
exists; `read_stream` reads streams with a watermark that follows their boundaries; `flow` starts a chain of Holdfast's
own operators, `flow_of` does so on a streaming DataFrame, as in a node.
"""

from holdfast.spark.flow import Flow, flow, flow_of
from holdfast.spark.frames import read_stream
from holdfast.spark.session import SETTINGS, register, session

__all__ = ["SETTINGS", "Flow", "flow", "flow_of", "read_stream", "register", "session"]
