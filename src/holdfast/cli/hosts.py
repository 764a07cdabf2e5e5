"""Speaks to the hosts of a deployment: their status, the links they are to cut, and the wish that they stop.

Rules:
1. The token goes to the addresses of the deployment and nowhere else: no proxies, no redirects.
2. A host that does not answer, or not as it should, is a `PeerError` of one sentence that says which and why.
3. Answers are bounded and checked. Words that are not known are passed over: a newer host may say more.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.host.deployment import Deployment, HostSpec
from holdfast.host.envelope import UNREADABLE
from holdfast.model.errors import PeerError, UsageError

if TYPE_CHECKING:
    import httpx

#: A host on a busy machine answers within this, or something is wrong.
TIMEOUT_S = 5.0
#: The status of a thousand replicas has half of it.
ANSWER_BYTES_MAX = 4 << 20


class OutputStatus(msgspec.Struct, frozen=True):
    stream: str
    state: str
    boundary_us: int | None = None
    fresh: bool = False
    retention: str | None = None


class ForkStatus(msgspec.Struct, frozen=True):
    state: str
    id: int | str | None = None


class InputStatus(msgspec.Struct, frozen=True):
    stream: str
    reading: tuple[str, ...] = ()
    boundary_us: int | None = None
    failing: bool = False


class CheckpointStatus(msgspec.Struct, frozen=True):
    """What the checkpoints of a node's operator cost with its last batch and are worth (`engine.Recovery`)."""

    windows: int
    since_us: int
    extent_s: float
    opened: int
    checked: int
    closed: int
    bytes: int
    period_s: float
    recovery_estimate_s: float
    last_recovery_s: float | None = None
    recover_within_s: float | None = None
    broken_goal: str | None = None
    """Why a recovery would take longer than was asked for."""


class SavesStatus(msgspec.Struct, frozen=True):
    """What the checkpoints of one operator in a store have come to (`engine.Saves`)."""

    operator: str
    durable: int
    dropped: int
    met: int
    missed: int
    late_s: float
    waiting: int
    bytes: int
    last_restore_s: float | None = None


class ReplicaStatus(msgspec.Struct, frozen=True):
    replica: str
    node: str
    state: str
    stable_until_us: int | None = None
    frontier_us: int | None = None
    output: OutputStatus | None = None
    fork: ForkStatus | None = None
    inputs: tuple[InputStatus, ...] = ()
    waits_for: str | None = None
    """What keeps it from serving: `spark`, `inputs`, `replay`."""
    why: str | None = None
    """The same as a sentence; or why it failed."""
    checkpoints: CheckpointStatus | None = None
    saves: tuple[SavesStatus, ...] = ()


class SourceStatus(msgspec.Struct, frozen=True, rename={"origin": "from"}):
    """What fills a source stream, and how it does."""

    stream: str
    origin: str
    state: str
    why: str = ""
    lag: int | None = None
    lag_bytes: int | None = None
    rate: float | None = None
    rows: int = 0
    late: int = 0
    dead: int = 0
    errors: int = 0
    last_error: str | None = None


class SinkStatus(msgspec.Struct, frozen=True):
    sink: str
    stream: str
    target: str
    state: str
    rows: int = 0
    rows_per_s: float = 0
    lag_s: float | None = None
    """How much of the stream, in its own time, the target lacks."""
    removed_before: str | None = None
    """What retention had removed when the target was begun, and it so lacks, lies before this."""
    why: str | None = None


class HostStatus(msgspec.Struct, frozen=True):
    """What GET /v1/status says."""

    host: str
    replicas: tuple[ReplicaStatus, ...] = ()
    cuts: tuple[str, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()


#: Made once, before threads use it: msgspec looks types up lazily, and not in several threads at once.
_status = msgspec.json.Decoder(HostStatus)


class Unreachable(PeerError):
    """Nobody answered."""


class HostClient:
    """One host of the deployment."""

    def __init__(self, spec: HostSpec, token: str) -> None:
        self.spec, self._token = spec, token

    def status(self) -> HostStatus:
        body = self.call("GET", "/v1/status")
        try:
            status = _status.decode(body)
        except UNREADABLE as error:
            raise PeerError(f"{self._who} answers, but not as a host does: {error}") from None
        if status.host != self.spec.name:
            raise PeerError(f"{self._who} says that it is {status.host!r}; another deployment uses the same address")
        return status

    def faults(self, *, cut: Sequence[str] = (), heal: Sequence[str] = ()) -> None:
        """Cut these links and heal those, as `holdfast.cli.cutting` spells them."""
        self.call("POST", "/v1/faults", {"cut": list(cut), "heal": list(heal)})

    def stop(self) -> None:
        """Ask the host to end; it says yes and then ends."""
        self.call("POST", "/v1/stop")

    @property
    def _who(self) -> str:
        return f"host {self.spec.name!r} at {self.spec.url}"

    def call(self, method: str, path: str, json: Any = None, *, timeout_s: float = TIMEOUT_S) -> bytes:
        import httpx

        headers = {"Authorization": f"Bearer {self._token}"}
        verify = _trust(self.spec)
        try:
            with (
                httpx.Client(base_url=self.spec.url, timeout=timeout_s, trust_env=False, verify=verify) as client,
                client.stream(method, path, headers=headers, json=json) as answer,
            ):
                body = _bounded(answer, self._who)
        except httpx.ConnectError as error:
            raise Unreachable(f"{self._who} does not answer: {error}; `holdfast up` starts it") from None
        except httpx.TimeoutException:
            raise PeerError(f"{self._who} did not answer within {timeout_s:.0f} s") from None
        except httpx.HTTPError as error:
            raise PeerError(f"{self._who} broke off: {error or type(error).__name__}") from None
        if answer.status_code == 401:
            raise PeerError(f"{self._who} does not accept the token; use the token file it was started with")
        if answer.status_code >= 300:
            reason = _reason(body)
            if reason is not None and answer.status_code < 500:
                raise PeerError(f"{self._who} refused: {reason}")
            raise PeerError(f"{self._who} refused {path} with {answer.status_code}: {reason or 'no reason given'}")
        return body


def clients(deployment: Deployment, names: Sequence[str] | None = None, *, looking: bool = False) -> list[HostClient]:
    """A client for each host, or for the named ones; if it only looks, the viewer's token is enough."""
    token = deployment.looking_token() if looking else deployment.token()
    specs = [deployment.host(name) for name in names] if names else deployment.hosts
    return [HostClient(spec, token) for spec in specs]


def statuses(asked: Sequence[HostClient]) -> list[HostStatus | PeerError]:
    """What each host says, asked all at once: one that hangs must not hide the others."""

    def ask(client: HostClient) -> HostStatus | PeerError:
        try:
            return client.status()
        except PeerError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(16, len(asked))) as pool:
        return list(pool.map(ask, asked))


def _trust(spec: HostSpec) -> ssl.SSLContext | bool:
    if spec.tls is None:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Not used; the default would read all authorities each time.
    if spec.tls.authority is None:
        return True
    try:
        return ssl.create_default_context(cafile=spec.tls.authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the authority {spec.tls.authority} of host {spec.name!r} cannot be used: {error}") from None


def _bounded(answer: httpx.Response, who: str) -> bytes:
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise PeerError(f"{who} answers with more than {ANSWER_BYTES_MAX} bytes; it cannot be a host of ours")
    return bytes(body)


def _reason(body: bytes) -> str | None:
    try:
        said = msgspec.json.decode(body)
    except UNREADABLE:
        return None
    text = said.get("error") if isinstance(said, dict) else None
    return None if text is None else "".join(char if char.isprintable() else " " for char in str(text)[:500])
