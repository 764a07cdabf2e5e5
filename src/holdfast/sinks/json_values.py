"""Rows as JSON, for targets that take text: times in ISO, decimals as text, bytes in hexadecimal digits."""

from __future__ import annotations

import json
from typing import Any

from holdfast.model.errors import SchemaError


def json_bytes(value: Any, target: str) -> bytes:
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # NaN, or an infinity.
        raise SchemaError(
            f"a number for {target} must be finite, since JSON has no word for others; a row holds NaN or an infinity; "
            "replace it in the query"
        ) from None


def _plain(value: Any) -> Any:
    """A value that JSON has no word for."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
