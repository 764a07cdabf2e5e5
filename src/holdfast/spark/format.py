"""The format "holdfast", as Spark finds it.

Every worker of Spark's comes here first. So what reads, what writes and what holds an operator's state is imported only
where it is needed: most workers need one of the three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.model.errors import UsageError
from holdfast.spark.options import READ_OPTIONS, WRITE_OPTIONS, Options
from holdfast.spark.time_column import time_path
from holdfast.stream.merge import merged_schema, sources_of

if TYPE_CHECKING:
    from holdfast.spark.forked import ForkReader
    from holdfast.spark.sink import BatchSink, StreamSink
    from holdfast.spark.source import BucketReader, RangeReader
    from holdfast.spark.striped_sink import StripedSink
    from holdfast.spark.tentative_source import SequenceReader


class HoldfastSource(DataSource):
    """`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `.format("holdfast")`."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        options = Options(self.options, READ_OPTIONS)
        direct = options.get("stage")
        if direct is not None:
            from holdfast.spark.direct import decode_stage

            return from_arrow_schema(decode_stage(direct).plan.schema)
        sources = sources_of(options.streams)
        return from_arrow_schema(merged_schema(sources, stream_column=options.flag("streamcolumn", len(sources) > 1)))

    def reader(self, schema: StructType) -> RangeReader:
        if Options(self.options, READ_OPTIONS).flag("tentative", False):
            from holdfast.spark.tentative_source import SequenceRangeReader

            return SequenceRangeReader(dict(self.options))
        from holdfast.spark.source import RangeReader

        return RangeReader(dict(self.options))

    def streamReader(self, schema: StructType) -> BucketReader | ForkReader | SequenceReader:
        options = Options(self.options, READ_OPTIONS)
        if options.flag("tentative", False):
            from holdfast.spark.tentative_source import SequenceReader

            return SequenceReader(dict(self.options))
        staged, forked = options.get("stage") is not None, options.get("plan") is not None
        if forked:
            from holdfast.spark.forked import ForkReader, ForkStageReader

            return ForkStageReader(dict(self.options)) if staged else ForkReader(dict(self.options))
        if staged:
            from holdfast.spark.direct import StageReader

            return StageReader(dict(self.options))
        from holdfast.spark.source import BucketReader

        return BucketReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        if overwrite:
            raise UsageError("a stream is never overwritten; write with .mode('append'), or delete and create it")
        from holdfast.spark.sink import BatchSink

        return BatchSink(self._timed(schema), _arrow(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink | StripedSink:
        if overwrite:
            raise UsageError("a stream takes results once, in append mode; leave out .outputMode('complete')")
        given, options = self._timed(schema), Options(self.options, WRITE_OPTIONS)
        names = options.names("stream")
        if len(names) == 1 and (dealing := options.store.stripes_of(names[0])) is not None:
            from holdfast.spark.striped_sink import StripedSink

            return StripedSink(dealing, given, _arrow(schema))
        from holdfast.spark.sink import StreamSink

        return StreamSink(given, _arrow(schema))

    def _timed(self, schema: StructType) -> dict[str, str]:
        """The options with the column that gives stime; Spark's note of event time does not survive in Arrow."""
        given = {key.lower(): value for key, value in self.options.items()}
        stime = time_path(schema, given.get("stime"), f"the query of {given.get('path') or 'the stream'}")
        return {**given, "stime": ".".join(stime)}


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")
