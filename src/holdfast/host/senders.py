"""Who may send by TCP and HTTP, and under which producer ids: a small YAML file beside the token files.

    shop: {token: shop.token, ids: [shop-1, shop-2]}    # under these, and nobody else
    meters: {token: meters.token}                       # under any that is nobody's

Token files are as for hosts: mode 600, a line each; with a second line an old token stays good for a while.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.host.plain_yaml import read_yaml
from holdfast.inputs.credentials import Credential, Keyring, Role
from holdfast.inputs.token_file import TokenFile
from holdfast.model.errors import UsageError
from holdfast.model.names import check_name


class _Sender(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    ids: list[str] | None = None


def load_senders(path: Path) -> Keyring:
    """Read and check the file; no id may belong to two."""
    try:
        said = msgspec.convert(read_yaml(path), dict[str, _Sender])
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}; a sender is {{token: file, ids: [names]}}") from None
    owner: dict[str, str] = {}
    for name, sender in said.items():
        for id in sender.ids or ():
            if owner.setdefault(check_name(id), name) != name:
                raise UsageError(f"{path} gives the id {id!r} to {owner[id]!r} and to {name!r}; give it to one")
    return Keyring([
        (Credential(check_name(name), Role.PRODUCER, ids=None if sender.ids is None else frozenset(sender.ids)),
         TokenFile(path.parent / sender.token))
        for name, sender in said.items()
    ])  # fmt: skip
