"""Which hosts there are, and what runs where: one YAML file, the same for all hosts and tools (003 §3.3, §4.1.2).

    app: netmon.py                      # file, or module; with several App objects netmon.py:name
    token: secret.token                 # file with the shared secret; made by `holdfast up` when absent
    view_token: view.token              # the same for those who may look but not act; optional
    peer_token: peer.token              # what hosts show each other instead of the operator's; optional
    spark_token: spark.token            # the secret of a Spark cluster (spark.authenticate.secret); optional
    readers:                            # those who may see some streams only; optional
      dashboard: {token: dashboard.token, streams: [active_sources]}
    hosts:
      a: {address: "127.0.0.1:7401", root: a/}         # with contracts, load: anna.yaml (`holdfast.load.contract_file`)
      b: {address: "127.0.0.1:7402", root: b/}
    sources: {monitor1: a, monitor2: b} # which host holds a source stream; `holdfast.host.source_file`: what fills it
    nodes: {active_sources: [a, b]}     # replica sets; optional
    sinks: {active_sources.postgres: b} # which host runs a sink; `holdfast.host.sink_file`: sinks of the file; optional
    archives:                           # streams whose past goes to an object store; optional
      active_sources: s3://bucket/prefix
      monitor1: {url: "s3://bucket/prefix", disk_age: 2d, disk_size: 50GB, age: 365d, size: 2TB}
    spark: {spark.sql.shuffle.partitions: "4"}  # settings of every session; a host may have a `spark:` of its own

Rules:
1. The schema is closed: a word that is not known is refused, never ignored. Paths are relative to the file.
2. An address that others can reach needs TLS, or the word `mesh` in its place: then it is plain HTTP, and whoever wrote
   the word answers for what encrypts it. The token is asked for everywhere (X1).
3. A root belongs to one host: two hosts of one machine in the same folder, or one inside the other, would write each
   other's streams.
4. What needs the diagram (nodes, streams, replicas) is checked by `holdfast.host.catalog`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from holdfast.diagram import check_node_name
from holdfast.host.plain_yaml import read_yaml
from holdfast.host.sink_file import SinkWords, check_sink
from holdfast.host.source_file import SourceWords, homes, source_spec
from holdfast.inputs.credentials import Credential, Keyring, Role
from holdfast.inputs.network import is_loopback
from holdfast.inputs.source import SourceSpec
from holdfast.inputs.token_file import TokenFile, make_token, read_token
from holdfast.model.errors import UsageError
from holdfast.model.size import size_bytes
from holdfast.model.time import duration_us
from holdfast.stream.acks import check_subscriber
from holdfast.stream.archive.objects import check_url
from holdfast.stream.definition import ArchivePolicy, Retention

if TYPE_CHECKING:
    from holdfast.app import App

TOKEN_FILE = "holdfast.token"


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
    load: Path | None = None
    """The contracts under which it shares load with others; None: it does not."""
    mesh: bool = False
    """TLS is left to a mesh: it listens without, on an address that others can reach."""

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

    @property
    def pid_file(self) -> Path:
        """Who holds it is the host."""
        return self.own / "host.pid"

    @property
    def log_file(self) -> Path:
        """What the host says, and Spark with it."""
        return self.own / "host.log"


class Reader(NamedTuple):
    """Somebody who may see some streams and nothing else."""

    token_file: Path
    streams: frozenset[str]


@dataclass(frozen=True, slots=True)
class Deployment:
    """The file, checked. Made by `load_deployment`."""

    file: Path
    app: str
    token_file: Path
    hosts: tuple[HostSpec, ...]
    sources: Mapping[str, tuple[str, ...]]
    """Source stream → the hosts that hold and serve it: one, or several with a copy each."""
    nodes: Mapping[str, tuple[str, ...]]
    """Node → its replica set, for the nodes that the file names."""
    view_token_file: Path | None = None
    """None: nobody may merely look."""
    peer_token_file: Path | None = None
    """None: hosts show each other the operator's."""
    readers: Mapping[str, Reader] = field(default_factory=dict)
    spark_token_file: Path | None = None
    """The secret of the clusters that hosts name as their masters."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Sink → the host that runs it, for the sinks that the file names."""
    fed: Mapping[str, SourceSpec] = field(default_factory=dict)
    """Source stream → what fills it, where the file says so."""
    archives: Mapping[str, ArchivePolicy] = field(default_factory=dict)
    """Stream → where its sealed segments go, and what each tier keeps."""
    described: Mapping[str, SinkWords] = field(default_factory=dict, repr=False)  # Addresses may hold passwords.
    """Sink → what the file says of it, where that is more than its host."""

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
        """The shared secret of hosts and of those who operate them."""
        return read_token(self.token_file)

    def view_token(self) -> str | None:
        """The secret of those who may look but not act; None if the file names none."""
        return None if self.view_token_file is None else read_token(self.view_token_file)

    def looking_token(self) -> str:
        """A secret to look with."""
        return self.looking_file().current()

    def looking_file(self) -> TokenFile:
        """The file of a secret to look with: the operator's where it can be read, otherwise the viewer's."""
        if self.view_token_file is not None and not os.access(self.token_file, os.R_OK):
            return TokenFile(self.view_token_file)
        return TokenFile(self.token_file)

    def peer_file(self) -> TokenFile:
        """The file of the secret that hosts show each other."""
        return TokenFile(self.peer_token_file or self.token_file)

    def keyring(self) -> Keyring:
        """Everybody whom a host lets in; no two may have the same token, or one could do what the other may."""
        entries = [(Credential("operator", Role.OPERATOR), TokenFile(self.token_file))]
        if self.peer_token_file is not None:
            entries.append((Credential("peer", Role.PEER), TokenFile(self.peer_token_file)))
        if self.view_token_file is not None:
            entries.append((Credential("viewer", Role.VIEWER), TokenFile(self.view_token_file)))
        for name, reader in self.readers.items():
            entries.append((Credential(name, Role.READER, reader.streams), TokenFile(reader.token_file)))
        for (_, one), (_, other) in combinations(entries, 2):
            if set(one.accepted()) & set(other.accepted()):
                raise UsageError(
                    f"{one.path} and {other.path} must hold different tokens, or whoever may do less could do more; "
                    "remove the second and `holdfast up` makes a new one"
                )
        return Keyring(entries)

    def spark_settings(self, host: HostSpec) -> dict[str, str]:
        """Those of the host's session, with the secret of its cluster if it has one."""
        if self.spark_token_file is None or host.master is None:
            return dict(host.spark)
        from holdfast.spark.cluster_security import with_secret

        return {**with_secret(read_token(self.spark_token_file)), **dict(host.spark)}

    def make_token(self) -> bool:
        """Make the token file unless there is one, and all others with it; True if the first was made."""
        others = (self.view_token_file, self.peer_token_file, *(reader.token_file for reader in self.readers.values()))
        for other in others:
            if other is not None:
                make_token(other)
        return make_token(self.token_file)


class _Tls(msgspec.Struct, forbid_unknown_fields=True):
    cert: str
    key: str
    ca: str | None = None


class _Host(msgspec.Struct, forbid_unknown_fields=True):
    address: str
    root: str
    master: str | None = None
    tls: _Tls | Literal["mesh"] | None = None
    spark: dict[str, str] = {}
    load: str | None = None


class _Reader(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    streams: list[str]


class _Archive(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    disk_age: str | None = None
    disk_size: str | None = None
    age: str | None = None
    size: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    app: str
    hosts: dict[str, _Host]
    token: str = TOKEN_FILE
    view_token: str | None = None
    peer_token: str | None = None
    readers: dict[str, _Reader] = {}
    spark_token: str | None = None
    sources: dict[str, str | SourceWords] = {}
    nodes: dict[str, list[str]] = {}
    sinks: dict[str, str | SinkWords] = {}
    archives: dict[str, str | _Archive] = {}
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
        MappingProxyType({stream: homes(file, stream, told) for stream, told in said.sources.items()}),
        MappingProxyType({node: tuple(names) for node, names in said.nodes.items()}),
        None if said.view_token is None else file.parent / said.view_token,
        None if said.peer_token is None else file.parent / said.peer_token,
        MappingProxyType({name: _reader(file, name, reader) for name, reader in said.readers.items()}),
        None if said.spark_token is None else file.parent / said.spark_token,
        MappingProxyType(_sink_hosts(said.sinks)),
        MappingProxyType(_fed(file, said.sources)),
        MappingProxyType({stream: _archive(file, stream, archive) for stream, archive in said.archives.items()}),
        MappingProxyType(_described(file, said.sinks)),
    )
    _check_tokens(deployment)
    _check_names(deployment)
    return deployment


def _fed(file: Path, sources: Mapping[str, str | SourceWords]) -> dict[str, SourceSpec]:
    found = {s: source_spec(file, s, said) for s, said in sources.items() if not isinstance(said, str)}
    return {stream: spec for stream, spec in found.items() if spec is not None}


def _sink_hosts(sinks: Mapping[str, str | SinkWords]) -> dict[str, str]:
    found = {sink: said if isinstance(said, str) else said.host for sink, said in sinks.items()}
    return {sink: host for sink, host in found.items() if host is not None}


def _described(file: Path, sinks: Mapping[str, str | SinkWords]) -> dict[str, SinkWords]:
    return {sink: check_sink(file, sink, said) for sink, said in sinks.items() if not isinstance(said, str)}


def _archive(file: Path, stream: str, said: str | _Archive) -> ArchivePolicy:
    words = _Archive(said) if isinstance(said, str) else said
    try:
        on_disk = None if words.disk_age is words.disk_size is None else _kept(words.disk_age, words.disk_size)
        return ArchivePolicy(check_url(words.url), on_disk, _kept(words.age, words.size))
    except UsageError as error:
        raise UsageError(f"the archive of stream {stream} in {file}: {error}") from None


def _kept(age: str | None, size: str | None) -> Retention:
    return Retention(None if age is None else duration_us(age), None if size is None else size_bytes(size))


def _reader(file: Path, name: str, said: _Reader) -> Reader:
    check_subscriber(name)
    if not said.streams:
        raise UsageError(f"reader {name!r} in {file} must have streams that it may see; got none; name some")
    return Reader(file.parent / said.token, frozenset(said.streams))


def _check_tokens(deployment: Deployment) -> None:
    named = {"token": deployment.token_file, "peer_token": deployment.peer_token_file,
             "view_token": deployment.view_token_file,
             **{f"reader {name!r}": reader.token_file for name, reader in deployment.readers.items()}}  # fmt: skip
    for (one, a), (other, b) in combinations(named.items(), 2):
        if a is not None and a == b:
            raise UsageError(
                f"{deployment.file} must name another file for {other} than for {one}; got {a.name!r} for both"
            )


def _host(file: Path, name: str, said: _Host, spark: Mapping[str, str]) -> HostSpec:
    check_node_name(name, f"the name of a host in {file}", "rename it under hosts")
    ip, port = _address(file, name, said.address)
    tls = None
    if isinstance(said.tls, _Tls):
        ca = None if said.tls.ca is None else file.parent / said.tls.ca
        tls = Tls(file.parent / said.tls.cert, file.parent / said.tls.key, ca)
    elif said.tls is None and not is_loopback(ip):
        raise UsageError(
            f"host {name!r} in {file} listens on {ip}, where others can reach it: that needs TLS; give it "
            "tls: {cert: …, key: …, ca: …}, an address on 127.0.0.1, or tls: mesh where a mesh of proxies encrypts "
            "everything between the machines"
        )
    if not said.root:
        raise UsageError(f"host {name!r} in {file} must have a folder of its own; got an empty root; name one")
    settings = {**spark, **said.spark}
    for key in settings:
        if not key.startswith("spark."):
            raise UsageError(
                f"settings under spark in {file} must be Spark's own, such as spark.sql.shuffle.partitions; got {key!r}"
            )
    load = None if said.load is None else file.parent / said.load
    mesh = said.tls == "mesh"
    return HostSpec(name, ip, port, file.parent / said.root, said.master, tls, tuple(settings.items()), load, mesh)


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
    for home in (*(h for hosts in deployment.sources.values() for h in hosts), *deployment.sinks.values()):
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
