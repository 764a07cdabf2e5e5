"""What a striped stream is: a name, and the ordinary streams, its stripes, that tuples are dealt to (000 §3.1).

Rules:
1. The stripes of `orders` are the streams `orders.s0`, `orders.s1` …: each with a writer, a log and a retention of its
   own, and nobody who knows them as streams needs to know that they are stripes.
2. The file `stripes` in the folder of the name says how many there are and how tuples are dealt. It is written when all
   stripes are there, and removed when none is, so a striped stream is whole or not at all. It never changes.
3. By key: equal values of one column go to one stripe, by the CRC32 (that of zlib) of their text, so that Python and
   Spark deal alike, in every process and version. A null is dealt like an empty text. Keys whose text is not the same
   everywhere (floating point, decimals, times) are refused.
4. In turn: whoever sends deals as it likes. A producer gives each unit to the next stripe, and a unit with a number
   to the stripe of the CRC32 of that number, so that it comes to the same one when it is sent again.
5. Tokens in the logs of stripes that are no numbers of a sender have a slash, which no sender's id has.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.errors import UsageError
from holdfast.model.names import check_name
from holdfast.model.schema import schema_text
from holdfast.stream.frame import FORMAT_VERSION

#: Beyond it the boundaries of stripes without tuples cost more than their writers bring; readers keep files open for
#: each.
STRIPES_MAX = 64
#: In the folder of the name.
STRIPES_FILE = "stripes"
#: In the unit that ends a stripe because the whole was ended (rule 5): whoever goes on ends the others, too.
ENDED = "/ended"


def part_token(id: str) -> str:
    """Under which a stripe has the number of a unit that it shares with others (rule 5)."""
    return f"{id}/part"


class Stripes(msgspec.Struct, frozen=True, kw_only=True):
    """Rule 2."""

    format: int = FORMAT_VERSION
    id: str
    name: str
    stripes: int
    ids: tuple[str, ...] = ()
    """Those of the streams that are its stripes: another one of the same name is none."""
    by: str | None = None
    """The column whose equal values stay together; None: in turn."""
    created_us: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return stripe_names(self.name, self.stripes)

    @property
    def text(self) -> str:
        return f"{self.stripes} stripes, {'in turn' if self.by is None else f'by {self.by}'}"


def stripe_names(name: str, stripes: int) -> tuple[str, ...]:
    """Rule 1, checked."""
    if type(stripes) is not int or not 1 <= stripes <= STRIPES_MAX:
        raise UsageError(f"a striped stream must have 1 to {STRIPES_MAX} stripes; got {stripes!r}")
    check_name(name)
    return tuple(check_name(f"{name}.s{n}") for n in range(stripes))


def check_key(by: str, schema: pa.Schema) -> None:
    """Rule 3."""
    if by not in schema.names:
        raise UsageError(f"stripe_by must name a column of ({schema_text(schema)}); got {by!r}")
    kind = schema.field(by).type
    known = (pa.types.is_string, pa.types.is_binary, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
    if not any(is_known(kind) for is_known in known):
        raise UsageError(
            f"stripe_by must name a column of strings, bytes, whole numbers, booleans or dates, whose text is the same "
            f"everywhere; {by!r} is {kind}; name another column, or deal in turn"
        )


def dealt_by_key(keys: pa.Array, stripes: int) -> npt.NDArray[np.int64]:
    """Rule 3: the stripe of each key."""
    coded = keys.dictionary_encode(null_encoding="encode")
    of_key = [zlib.crc32(_key_bytes(value)) % stripes for value in coded.dictionary.to_pylist()]
    found: npt.NDArray[np.int64] = np.asarray(of_key, np.int64)[np.asarray(coded.indices)]
    return found


def _key_bytes(value: object) -> bytes:
    """A key's text as Spark casts it to a string."""
    if isinstance(value, bytes):
        return value
    if value is None:
        return b""
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode()
