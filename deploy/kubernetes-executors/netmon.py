"""Busy sources of a network, counted over three monitors by an operator of Holdfast's: its state goes through the
driver, where Spark's own would need a checkpoint that executors and driver share."""

import holdfast
from holdfast.operators import count, time_window
from holdfast.spark import flow_of

app = holdfast.App("netmon", root="streams/")


@app.node(inputs=["monitor1", "monitor2", "monitor3"], output="active_sources", max_delay="5s", replicas=2)
def active_sources(connections):
    return flow_of(connections).aggregate(count(), window=time_window("2s"), by="source").filter("count > 100")
