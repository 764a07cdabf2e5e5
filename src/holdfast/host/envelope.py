"""Messages in envelopes: who sends what to whom, as JSON with a version.

Rules:
1. The version comes first, and another one is refused instead of guessed.
2. The schema is closed and bounded (X4): a message is decoded into its form, a struct that forbids what it does not
   know, before anything of it becomes the message that a core takes.
3. A message and its form have fields of the same names; what differs inside of them is told by `formed` and `meant`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

import msgspec

from holdfast.model.errors import PeerError

#: Whatever a decoder of msgspec's raises on bytes that are not what it was promised.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)


def one_line(error: BaseException) -> str:
    """The reason in a sentence: what a peer sent may stand in it, line ends and all."""
    return " ".join(str(error)[:200].split())


def _same(value: Any) -> Any:
    return value


class Envelopes:
    """One language of messages: its version, its names, and the form of every message."""

    def __init__(
        self, version: int, name: Any, forms: Mapping[type[Any], type[Any]], *, bytes_max: int,
        formed: Callable[[Any], Any] = _same, meant: Callable[[Any], Any] = _same,
    ) -> None:  # fmt: skip
        self._version, self._forms, self._bytes_max = version, forms, bytes_max
        self._formed, self._meant = formed, meant
        self._messages = {form: message for message, form in forms.items()}
        said: Any = Union[tuple(forms.values())]  # noqa: UP007 - of a list that is not known here
        self._envelope = msgspec.defstruct(
            "Envelope", [("version", Literal[version]), ("sender", name), ("to", name), ("message", said)],
            frozen=True, forbid_unknown_fields=True,
        )  # fmt: skip
        self._decoder = msgspec.json.Decoder(self._envelope)

    def encode(self, sender: str, to: str, message: Any) -> bytes:
        form = self._forms[type(message)]
        said = form(*(self._formed(getattr(message, name)) for name in form.__struct_fields__))
        return msgspec.json.encode(self._envelope(self._version, sender, to, said))

    def decode(self, data: bytes) -> tuple[str, str, Any]:
        """Sender, receiver and message; `PeerError` if that is not what came."""
        if len(data) > self._bytes_max:
            raise PeerError(f"a message may have {self._bytes_max} bytes at most; got {len(data)}")
        try:
            envelope: Any = self._decoder.decode(data)
        except UNREADABLE as error:
            raise PeerError(
                f"a message must follow version {self._version} of the schema; got one where {one_line(error)}"
            ) from None
        said = envelope.message
        fields = (self._meant(getattr(said, name)) for name in said.__struct_fields__)
        return envelope.sender, envelope.to, self._messages[type(said)](*fields)
