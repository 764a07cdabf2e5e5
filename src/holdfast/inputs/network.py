"""Who may reach an input over the network.

Rules (X1):
1. Loopback by default. Any other address is refused unless there is a token and TLS, or the word that a mesh of proxies
   encrypts what goes there.
2. Tokens are compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from holdfast.inputs.credentials import ANYBODY, Credential, Keyring
from holdfast.inputs.token_file import TOKEN_CHARS_MIN
from holdfast.model.errors import StorageError, UsageError

#: Callers that wait until the input accepts.
BACKLOG = 128


class Access(NamedTuple):
    """Where an input listens and what it asks for."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    keys: Keyring | None = None
    """Tokens that stand for somebody, beside or instead of the one that stands for all."""
    mesh: bool = False
    """Somebody has said that TLS is the affair of a mesh between the machines."""

    @property
    def asks(self) -> bool:
        """Whether nobody is let in without a token."""
        return self.token is not None or self.keys is not None

    def check(self) -> Access:
        """Refuse what would let strangers in."""
        if self.token is not None and len(self.token) < TOKEN_CHARS_MIN:
            raise UsageError(f"a token must have {TOKEN_CHARS_MIN} characters or more; got {len(self.token)}")
        if (self.certificate is None) != (self.key is None):
            raise UsageError("TLS needs a certificate and its key; got only one of them")
        if not is_loopback(self.host) and (not self.asks or (self.certificate is None and not self.mesh)):
            raise UsageError(
                f"listening on {self.host} lets others in: that needs a token and TLS (a certificate and its key); "
                f"give both, or listen on 127.0.0.1"
            )
        return self

    def allows(self, token: str | None) -> bool:
        """Whether it is the one token that stands for all."""
        if self.token is None:
            return not self.asks
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def who(self, token: str | None) -> Credential | None:
        """The sender that shows this token; None: nobody who may send."""
        if self.allows(token):
            return ANYBODY
        return self.keys.who(token) if self.keys is not None and token is not None else None

    def listen(self) -> socket.socket:
        """A socket that takes connections already: whoever is told the port may call before anybody accepts."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With the protocol named, asyncio turns Nagle's delay off; otherwise an answer in two writes takes 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self.host, self.port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise StorageError(
                f"could not listen on {self.host} port {self.port}: {error.strerror or error}; choose another port"
            ) from error
        return sock

    def tls(self) -> ssl.SSLContext | None:
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"the certificate {self.certificate} and its key cannot be used: {error}") from None
        return context


def address_parts(address: str, *schemes: str) -> SplitResult | None:
    """An address with one of these schemes, a host, and if any a port that is one; None if it is no such address."""
    try:
        parts = urlsplit(address)
        fits = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:  # Brackets that do not pair, a port beyond 65535.
        return None
    return parts if fits else None


def is_loopback(host: str) -> bool:
    """Can only this machine reach it? A name other than localhost could mean anything, so it counts as not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
