"""The files of the console's page: HTML, style and script from this package, and the chart library beside them.

Rules:
1. They say nothing about the host and need no token. Nothing else is served: names are looked up, never joined to a
   path (X2).
2. The policy lets a page load what this host serves and talk to it, nothing else; no script and no style stands in the
   page itself. Nobody may frame it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-cache",
}  # fmt: skip
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}


class PageFile(NamedTuple):
    """One file as it is sent."""

    content: bytes
    type: str
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """All of them by name; the page itself is `index.html`."""
    found = {}
    for file in resources.files("holdfast.console").joinpath("static").iterdir():
        content, ending = file.read_bytes(), file.name.rpartition(".")[2]
        tag = hashlib.blake2b(content, digest_size=12).hexdigest()
        found[file.name] = PageFile(content, _TYPES[ending], f'"{tag}"')
    return found
