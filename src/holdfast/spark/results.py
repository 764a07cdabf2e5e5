"""The columns of a result: what of a frame becomes a stream, and whether that is what was declared.

Rules:
1. The header that came with the inputs is not part of a result (`result_columns`).
2. Declared columns are those of the output, in their order; a function that gives others is refused.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.diagram import NodeSpec
from holdfast.model.errors import SchemaError
from holdfast.model.schema import result_columns, schema_text, type_text


def node_columns(node: NodeSpec, schema: pa.Schema) -> pa.Schema:
    """The columns of a node's output, as its function gives them and its user declared them."""
    delivered = len(node.inputs) > 1 and not node.separate
    columns = result_columns(schema, f"node {node.name}", delivered=delivered)
    declared = node.output_schema
    if declared is None:
        return columns
    if _types(declared) != _types(columns):
        raise SchemaError(
            f"node {node.name} declares output_schema ({schema_text(declared)}); its function gives "
            f"({schema_text(columns)}); change one of the two"
        )
    return declared


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: type_text(field.type) for field in schema}
