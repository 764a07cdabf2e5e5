"""What Anna and Ben both know how to run. A node travels as one of these names, with its state; code never does."""

from pyspark.sql import functions as F

import holdfast

app = holdfast.App("definitions")


@app.node(inputs=["connections"], max_delay="10s")
def counts(connections):
    return connections.groupBy(F.window("stime", "5 seconds"), "source").count()
