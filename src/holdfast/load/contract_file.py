"""The paper that an owner has signed: who it is, what its machine can carry, and its contracts. One YAML file a host.

    participant: anna
    capacity: {cpu: 1.0}                  # what this host carries at most, in the units of the contracts
    partners:
      ben: {address: "http://127.0.0.1:7402", token: anna-ben.token}
    contracts:
      - {to: ben, price: 0.8 to 1.0, period: 10s, permits: [counts]}    # we may move load there, and pay
      - {from: ben, price: 0.8 to 1.0, period: 10s}                     # they may move load here, and pay

Rules:
1. A contract needs the consent of both owners: it stands in both files, with the same clauses. Its id holds a digest of
   them, so that two who have written down different things have no contract at all.
2. A token for each pair of partners, in a file that nobody else can read. It opens what the contracts say, nothing
   else. Addresses beyond this machine need https.
3. The schema is closed: a word that is not known is refused. Paths are relative to the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.diagram import check_node_name
from holdfast.host.plain_yaml import read_yaml
from holdfast.inputs.network import address_parts, is_loopback
from holdfast.inputs.token_file import TOKEN_CHARS_MIN, make_token
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.time import duration_us
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import MM1
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import Usage

_TOKEN_BYTES_MAX = 4096
#: Characters of a contract's SHA-256 in its id: 128 bits.
_ID_CHARS = 32


@dataclass(frozen=True, slots=True)
class Partner:
    """Another owner, and how to reach its host."""

    name: str
    address: str
    token_file: Path
    ca: Path | None = None

    def token(self) -> str:
        """The secret that the two share."""
        try:
            with self.token_file.open("rb") as file:
                mode, data = os.fstat(file.fileno()).st_mode, file.read(_TOKEN_BYTES_MAX)
        except FileNotFoundError:
            raise UsageError(
                f"the token {self.token_file} that is shared with {self.name!r} is not there; `holdfast contracts FILE "
                "--make-tokens` makes it; then hand it to the partner"
            ) from None
        except OSError as error:
            raise StorageError(f"the token {self.token_file} cannot be read: {error.strerror}") from error
        if mode & 0o077:
            raise UsageError(f"the token {self.token_file} must be its owner's alone; run `chmod 600` on it")
        token = data.decode("ascii", "replace").strip().partition("\n")[0].strip()
        if len(token) < TOKEN_CHARS_MIN or not all("!" <= char <= "~" for char in token):
            raise UsageError(
                f"the token in {self.token_file} must be {TOKEN_CHARS_MIN} or more printable characters; make a new one"
            )
        return token

    def make_token(self) -> bool:
        """Make the token unless it is there; True if it was made."""
        return make_token(self.token_file)


@dataclass(frozen=True, slots=True)
class Terms:
    """All that one participant has agreed to and decided for itself."""

    file: Path
    plan: ParticipantPlan
    capacity: Usage
    partners: Mapping[str, Partner]
    measure: Literal["busy", "rows"] = "busy"
    """`busy`: the time that batches take. `rows`: rows times `us_per_row`, as the seeds' prototype has it (§7.2.2)."""
    us_per_row: float = 0.0
    migration: float = 0.0
    definitions: str | None = None
    """An application whose nodes partners may bring; None: our own."""
    patience_us: int = 60_000_000
    """A partner that is silent for longer is taken for gone, and its work for us is taken up here again."""

    @property
    def name(self) -> str:
        return self.plan.name

    def partner(self, name: str) -> Partner:
        if name not in self.partners:
            known = ", ".join(self.partners) or "none"
            raise UsageError(f"no partner {name!r} of {self.name!r}; {self.file} has: {known}; check the name")
        return self.partners[name]


class _Partner(msgspec.Struct, forbid_unknown_fields=True):
    address: str
    token: str
    ca: str | None = None


class _Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu: float = 0.0
    bandwidth: float = 0.0
    memory: float = 0.0


class _Contract(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    price: str
    to: str | None = None
    from_: str | None = None
    period: str = "10s"
    permits: list[str] | None = None
    onward: bool = True
    unit: _Usage = _Usage(cpu=1.0)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    participant: str
    capacity: _Usage
    partners: dict[str, _Partner] = {}
    contracts: list[_Contract] = []
    interval: str = "2s"
    answer: str = "1s"
    margin: float = 0.05
    measure: Literal["busy", "rows"] = "busy"
    us_per_row: float = 0.0
    migration: float = 0.0
    definitions: str | None = None
    patience: str = "60s"


def load_terms(path: str | os.PathLike[str]) -> Terms:
    """Read and check a participant's file. What is wrong is told together with the file that says it."""
    file = Path(path).absolute()
    try:
        return _terms(file)
    except UsageError as error:
        if str(file) in str(error):
            raise
        raise UsageError(f"{file}: {error}") from error


def _terms(file: Path) -> Terms:
    try:
        said = msgspec.convert(read_yaml(file), _File, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: {error}{_known(str(error))}; docs/load-sharing.md shows every word") from None
    check_node_name(said.participant, f"the name of the participant in {file}", "rename it")
    partners = {name: _partner(file, name, partner) for name, partner in said.partners.items()}
    capacity = Usage(said.capacity.cpu, said.capacity.bandwidth, said.capacity.memory)
    contracts = tuple(_contract(file, said.participant, one, partners) for one in said.contracts)
    if said.measure == "rows" and said.us_per_row <= 0:
        raise UsageError(f"{file}: measure: rows needs us_per_row, what a row costs in microseconds of a core")
    plan = ParticipantPlan(said.participant, MM1(capacity), contracts, interval_us=duration_us(said.interval),
                           answer_us=duration_us(said.answer), margin=said.margin)  # fmt: skip
    definitions = None if said.definitions is None else said.definitions
    return Terms(file, plan, capacity, partners, said.measure, said.us_per_row, said.migration, definitions,
                 duration_us(said.patience))  # fmt: skip


def _known(problem: str) -> str:
    """Which words there are in the place where one is not known (rule 3)."""
    if "unknown field" not in problem:
        return ""
    where = problem.partition("at `$.")[2].rstrip("`")
    kind: type[msgspec.Struct] = _File
    if where.endswith(("capacity", "unit")):
        kind = _Usage
    elif where:
        kind = _Partner if where.startswith("partners") else _Contract
    return f"; it may have {', '.join(field.encode_name for field in msgspec.structs.fields(kind))}"


def _partner(file: Path, name: str, said: _Partner) -> Partner:
    check_node_name(name, f"the name of a partner in {file}", "rename it under partners")
    parts = address_parts(said.address, "http", "https")
    if parts is None:
        raise UsageError(f"the address of partner {name!r} in {file} must look like https://name:port; got "
                         f"{said.address!r}")  # fmt: skip
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise UsageError(f"the address of partner {name!r} in {file} must be https, or of this machine; got "
                         f"{said.address!r}")  # fmt: skip
    return Partner(name, said.address, file.parent / said.token, None if said.ca is None else file.parent / said.ca)


def _contract(file: Path, us: str, said: _Contract, partners: Mapping[str, Partner]) -> Contract:
    """Rule 1."""
    if (said.to is None) == (said.from_ is None):
        raise UsageError(f"a contract in {file} must have a direction: either `to` a partner, or `from` one")
    other = said.to or said.from_ or ""
    if other not in partners:
        raise UsageError(f"a contract in {file} is with {other!r}, who is not among the partners; add an address there")
    buyer, seller = (us, other) if said.to is not None else (other, us)
    low, high = _range(file, said.price)
    period_us, unit = duration_us(said.period), Usage(said.unit.cpu, said.unit.bandwidth, said.unit.memory)
    permits = None if said.permits is None else tuple(sorted(said.permits))
    clauses = f"{low!r} {high!r} {period_us} {permits} {said.onward} {tuple(unit)}"
    return Contract(
        _contract_id(buyer, seller, clauses), buyer, seller, low, high, period_us, permits, said.onward, unit
    )


def _contract_id(buyer: str, seller: str, clauses: str) -> str:
    """Two who have the same one have signed the same: nobody can find other clauses with the same id."""
    digest = hashlib.sha256(f"{buyer} {seller} {clauses}".encode()).hexdigest()
    return f"{buyer}.{seller}.{digest[:_ID_CHARS]}"


def is_older_id(contract_id: str) -> bool:
    """Whether an older Holdfast made it, which told contracts apart by a checksum of eight characters."""
    return len(contract_id.rpartition(".")[2]) < _ID_CHARS


def _range(file: Path, text: str) -> tuple[float, float]:
    first, _, last = text.partition(" to ")
    try:
        low, high = float(first), float(last or first)
    except ValueError:
        raise UsageError(f"a price in {file} must be a number or a range such as 0.8 to 1.0; got {text!r}") from None
    if not 0 <= low <= high:
        raise UsageError(
            f"a price in {file} must go from the lowest, 0 or more, to the highest, such as 0.8 to 1.0; got {text!r}"
        )
    return low, high
