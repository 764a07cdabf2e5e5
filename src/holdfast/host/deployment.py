"""Which hosts there are, and what runs where: one YAML file, the same for all hosts and tools (003 §3.3, §4.1.2).

    app: netmon.py                      # file, or module; with several App objects netmon.py:name
    token: secret.token                 # file with the shared secret; made by `holdfast up` when absent
    hosts:
      a: {address: "127.0.0.1:7401", root: a/}
      b: {address: "127.0.0.1:7402", root: b/}
    sources: {monitor1: a, monitor2: b} # which host holds a source stream
    nodes: {active_sources: [a, b]}     # replica sets; optional
    spark: {spark.sql.shuffle.partitions: "4"}  # settings of every session; a host may have a `spark:` of its own

Rules:
1. The schema is closed: a word that is not known is refused, never ignored. Paths are relative to the file.
2. An address that others can reach needs TLS; the token is asked for everywhere (X1).
3. A root belongs to one host: two hosts of one machine in the same folder, or one inside the other, would write each
   other's streams.
4. What needs the diagram (nodes, streams, replicas) is checked by `holdfast.host.catalog`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from holdfast.diagram import check_node_name
from holdfast.host.plain_yaml import read_yaml
from holdfast.inputs.network import TOKEN_CHARS_MIN, is_loopback
from holdfast.model.errors import StorageError, UsageError

if TYPE_CHECKING:
    from holdfast.app import App

TOKEN_FILE = "holdfast.token"
_TOKEN_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Tls:
    """Files a host proves itself with, and the authority by which others check it."""

    certificate: Path
    key: Path
    authority: Path | None = None
    """None: the authorities this machine trusts."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One process that runs replicas and serves streams."""

    name: str
    ip: str
    port: int
    root: Path
    master: str | None = None
    """Spark master; None: local."""
    tls: Tls | None = None
    spark: tuple[tuple[str, str], ...] = ()
    """Settings of its SparkSession, beyond those that Holdfast makes."""

    @property
    def address(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.address}"

    @property
    def own(self) -> Path:
        """Where the host keeps what is not a stream: log, pid, checkpoints."""
        return self.root / ".holdfast"


@dataclass(frozen=True, slots=True)
class Deployment:
    """The file, checked. Made by `load_deployment`."""

    file: Path
    app: str
    token_file: Path
    hosts: tuple[HostSpec, ...]
    sources: Mapping[str, str]
    """Source stream → the host that holds and serves it."""
    nodes: Mapping[str, tuple[str, ...]]
    """Node → its replica set, for the nodes that the file names."""

    def host(self, name: str) -> HostSpec:
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts)
        raise UsageError(f"no host {name!r} in {self.file}; there are: {known}; check the name, or add it under hosts")

    def load_app(self) -> App:
        """Import the application. This runs its file, as `python` would: a deployment is its owner's word."""
        from holdfast.host.app_file import load_app

        return load_app(self.app, self.file.parent)

    def token(self) -> str:
        """The shared secret."""
        try:
            with self.token_file.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(_TOKEN_BYTES_MAX + 1)
        except FileNotFoundError:
            raise UsageError(
                f"the token file {self.token_file} is not there; `holdfast up` makes it, or copy it from the host "
                "where it was made"
            ) from None
        except OSError as error:
            raise StorageError(f"the token file {self.token_file} cannot be read: {error.strerror}") from error
        if mode & 0o077:
            raise UsageError(
                f"the token file {self.token_file} must be its owner's alone; its mode is {mode & 0o777:o}; run "
                f"`chmod 600 {self.token_file}` and, if others could read it, make a new one"
            )
        token = data.decode("ascii", "replace").strip()
        if not TOKEN_CHARS_MIN <= len(token) <= _TOKEN_BYTES_MAX or not all("!" <= char <= "~" for char in token):
            raise UsageError(
                f"the token in {self.token_file} must be {TOKEN_CHARS_MIN} or more printable characters without "
                "spaces; remove the file and `holdfast up` makes a good one"
            )
        return token

    def make_token(self) -> bool:
        """Make the token file unless there is one; True if it was made."""
        from holdfast.stream.disk import Disk

        if self.token_file.exists():
            return False
        if not self.token_file.parent.is_dir():
            raise UsageError(f"the folder of the token file {self.token_file} is not there; make it first")
        disk = Disk()
        # Nobody may read it for even a moment, and of two that make it at once one wins.
        temporary = self.token_file.with_name(f".{self.token_file.name}.{secrets.token_hex(8)}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, secrets.token_urlsafe(32).encode() + b"\n")
            disk.sync(fd, temporary)
            return disk.link(temporary, self.token_file)
        finally:
            os.close(fd)
            disk.unlink(temporary)


class _Tls(msgspec.Struct, forbid_unknown_fields=True):
    cert: str
    key: str
    ca: str | None = None


class _Host(msgspec.Struct, forbid_unknown_fields=True):
    address: str
    root: str
    master: str | None = None
    tls: _Tls | None = None
    spark: dict[str, str] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    app: str
    hosts: dict[str, _Host]
    token: str = TOKEN_FILE
    sources: dict[str, str] = {}
    nodes: dict[str, list[str]] = {}
    spark: dict[str, str] = {}


def load_deployment(path: str | os.PathLike[str]) -> Deployment:
    """Read and check a deployment file."""
    file = Path(path).absolute()
    try:
        said = msgspec.convert(read_yaml(file), _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: {error}; docs/deployment.md shows every word") from None
    if not said.hosts:
        raise UsageError(f"{file} must name at least one host; got none; add one under hosts")
    hosts = tuple(_host(file, name, host, said.spark) for name, host in said.hosts.items())
    _check_apart(file, hosts)
    deployment = Deployment(
        file,
        said.app,
        file.parent / said.token,
        hosts,
        MappingProxyType(dict(said.sources)),
        MappingProxyType({node: tuple(names) for node, names in said.nodes.items()}),
    )
    _check_names(deployment)
    return deployment


def _host(file: Path, name: str, said: _Host, spark: Mapping[str, str]) -> HostSpec:
    check_node_name(name, f"the name of a host in {file}", "rename it under hosts")
    ip, port = _address(file, name, said.address)
    tls = None
    if said.tls is not None:
        ca = None if said.tls.ca is None else file.parent / said.tls.ca
        tls = Tls(file.parent / said.tls.cert, file.parent / said.tls.key, ca)
    elif not is_loopback(ip):
        raise UsageError(
            f"host {name!r} in {file} listens on {ip}, where others can reach it: that needs TLS; give it "
            "tls: {cert: …, key: …, ca: …}, or an address on 127.0.0.1"
        )
    if not said.root:
        raise UsageError(f"host {name!r} in {file} must have a folder of its own; got an empty root; name one")
    settings = {**spark, **said.spark}
    for key in settings:
        if not key.startswith("spark."):
            raise UsageError(
                f"settings under spark in {file} must be Spark's own, such as spark.sql.shuffle.partitions; got {key!r}"
            )
    return HostSpec(name, ip, port, file.parent / said.root, said.master, tls, tuple(settings.items()))


def _address(file: Path, name: str, text: str) -> tuple[str, int]:
    ip, _, port = text.rpartition(":")
    if ip.startswith("[") and ip.endswith("]"):
        ip = ip[1:-1]
    elif ":" in ip:
        ip = ""
    if not ip or not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise UsageError(
            f"the address of host {name!r} in {file} must look like 127.0.0.1:7401 or [::1]:7401; got {text!r}"
        )
    if ip in ("0.0.0.0", "::"):
        raise UsageError(
            f"the address of host {name!r} in {file} must be one that the other hosts can call; got {text!r}; name the "
            "machine"
        )
    return ip, int(port)


def _check_apart(file: Path, hosts: tuple[HostSpec, ...]) -> None:
    for one, other in combinations(hosts, 2):
        same = one.ip == other.ip or (is_loopback(one.ip) and is_loopback(other.ip))
        if not same:
            continue  # Equal paths on two machines are two folders.
        if one.port == other.port:
            raise UsageError(
                f"hosts {one.name!r} and {other.name!r} in {file} must have addresses of their own; got {one.address} "
                f"and {other.address}; give one of them another port"
            )
        a, b = one.root.resolve(), other.root.resolve()
        if a.is_relative_to(b) or b.is_relative_to(a):
            raise UsageError(
                f"hosts {one.name!r} and {other.name!r} in {file} must have roots apart from each other; got {a} and "
                f"{b}; give each a folder of its own"
            )


def _check_names(deployment: Deployment) -> None:
    """Hosts named by sources and nodes exist, and none stands in a replica set twice."""
    for home in deployment.sources.values():
        deployment.host(home)
    for node, names in deployment.nodes.items():
        if not names:
            raise UsageError(
                f"node {node!r} in {deployment.file} must run on at least one host; got an empty list; name hosts, or "
                "leave the node out to have it placed"
            )
        for name in names:
            deployment.host(name)
            if names.count(name) > 1:
                raise UsageError(
                    f"the replicas of node {node!r} in {deployment.file} must be on different hosts; got {name!r} "
                    "twice; name another host"
                )
