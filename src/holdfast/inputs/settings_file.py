"""Settings of a client outside (of Kafka, an object store, a catalog, a receiver's headers) in a file, where passwords
may stand that no program, deployment file or list of processes should show.

    security.protocol=SASL_SSL
    # Lines that begin with # say nothing.
    sasl.password=${KAFKA_PASSWORD}

`${NAME}` is the variable of the environment; `$${NAME}` is those letters. No message repeats a line: it may be secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.model.errors import UsageError

_VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_]\w*)\}", re.ASCII)


def read_settings(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"settings must be in {path}; {error}") from None
    found = {}
    for n, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, text = line.partition("=")
            if not equals or not name.strip():
                raise UsageError(f"{path} line {n} must be name=value; got a line without a name or without =")
            found[name.strip()] = _filled(text.strip(), f"{path} line {n}")
    return found


def _filled(text: str, where: str) -> str:
    """The value, with what the environment says."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        if match[2] not in os.environ:
            raise UsageError(
                f"{where} takes the variable {match[2]}, which must be set; set it, or write $${{{match[2]}}} if these "
                "letters are meant"
            )
        return os.environ[match[2]]

    return _VARIABLE.sub(value, text)
