"""Starts hosts as processes of their own, and takes back those that were started if one does not come up.

Rules:
1. A host runs in a session of its own: it outlives the terminal and hears no Ctrl-C meant for somebody else.
2. It is up when it answers for itself over HTTP and its replicas serve their readers, or can do nothing but wait for
   inputs; until then its process and its log are watched.
3. Only processes started here are ended here, and only while they are still our children.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.hosts import HostClient, HostStatus, ReplicaStatus
from holdfast.cli.running import log_file
from holdfast.clock import monotonic_us, pause
from holdfast.host.deployment import Deployment, HostSpec
from holdfast.host.log_rotation import cut_log
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.model.time import SECOND_US
from holdfast.stream.disk import Disk

_EVERY_US = 100_000
#: Spark needs a few seconds to end in order.
_TERM_S = 20
_LOG_TAIL_BYTES = 4096
#: How long a replica that lacks inputs is given before that counts as its state: those who serve them start, too.
_INPUTS_US = 5 * SECOND_US


@dataclass(frozen=True, slots=True)
class Launched:
    """A host process that we started."""

    spec: HostSpec
    process: subprocess.Popen[bytes]
    log: Path
    log_from: int
    """Where this start's part of the log begins."""


def check_startable(spec: HostSpec) -> None:
    """Refuse a host whose address is taken, or whose files are missing."""
    for path in () if spec.tls is None else (spec.tls.certificate, spec.tls.key, spec.tls.authority):
        if path is not None and not path.is_file():
            raise UsageError(f"host {spec.name!r} needs the TLS file {path}; it is not there; check tls: in the file")
    try:
        _bind(spec, spec.port)
    except OSError as error:
        raise StorageError(
            f"host {spec.name!r} cannot listen on {spec.address}: {error.strerror or error}; free the address, or give "
            "the host another one"
        ) from None


def is_local(spec: HostSpec) -> bool:
    """Whether the address belongs to this machine."""
    try:
        _bind(spec, 0)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            return False
    return True


def chosen_hosts(deployment: Deployment, names: Sequence[str] | None) -> tuple[list[HostSpec], list[str]]:
    """The hosts to start here, the named ones or all of this machine, and the names of those of other machines."""
    if names:
        specs = [deployment.host(name) for name in dict.fromkeys(names)]
        for spec in specs:
            if not is_local(spec):
                raise UsageError(
                    f"host {spec.name!r} has the address {spec.address}, which is not of this machine; run "
                    "`holdfast up` there"
                )
        return specs, []
    here = [spec for spec in deployment.hosts if is_local(spec)]
    if not here:
        raise UsageError(f"no host of {deployment.file} has an address of this machine; run `holdfast up` on theirs")
    return here, [spec.name for spec in deployment.hosts if spec not in here]


def _bind(spec: HostSpec, port: int) -> None:
    family = socket.AF_INET6 if ":" in spec.ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((spec.ip, port))


def launch(deployment: Deployment, spec: HostSpec) -> Launched:
    """Start `holdfast host FILE NAME`."""
    Disk().make_dir(spec.own)
    log = log_file(spec)
    cut_log(log)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        log_from = os.fstat(fd).st_size
        command = [sys.executable, "-m", "holdfast.cli.main", "host", str(deployment.file), spec.name]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    finally:
        os.close(fd)
    return Launched(spec, process, log, log_from)


def launch_all(
    deployment: Deployment,
    specs: Sequence[HostSpec],
    wait_us: int,
    up: Callable[[Launched, int, HostStatus], None],
    *,
    settle: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Start all of them and wait until each is up; `up` hears of each with the time it took. All or none."""
    launched: list[Launched] = []
    try:
        for spec in specs:
            launched.append(launch(deployment, spec))
        _wait_for(launched, deployment.token(), wait_us, up, settle, progress)
    except BaseException as error:
        _take_back(launched)
        if isinstance(error, _Ended):
            raise PeerError(
                f"host {error.host.spec.name!r} did not start: {_last_words(error.host)}; {_gone(launched)}; its log "
                f"is {error.host.log}"
            ) from None
        raise


def _wait_for(
    launched: Sequence[Launched],
    token: str,
    wait_us: int,
    up: Callable[[Launched, int, HostStatus], None],
    settle: bool,
    progress: Callable[[str], None],
) -> None:
    begun = monotonic_us()
    waiting = [_Starting(host, token) for host in launched]
    while waiting:
        all_answer = True
        for starting in waiting:
            starting.look(progress)
            all_answer &= starting.status is not None
        late = monotonic_us() - begun > wait_us
        for starting in list(waiting):
            status = starting.status
            if status is not None and (not settle or late or starting.settled(all_answer)):
                waiting.remove(starting)
                up(starting.host, monotonic_us() - begun, status)
        if waiting and late:
            host = waiting[0].host
            raise PeerError(
                f"host {host.spec.name!r} did not answer within {wait_us / 1e6:.0f} s; {_gone(launched)}; its log "
                f"is {host.log}; allow more with --wait"
            )
        pause(_EVERY_US if waiting else 0)


def answers(replica: ReplicaStatus) -> bool:
    """Whether the replica serves its readers, or never will."""
    return replica.state not in ("WAITING", "RECOVERING")


class _Starting:
    """A host on its way up."""

    def __init__(self, host: Launched, token: str) -> None:
        self.host, self._client = host, HostClient(host.spec, token)
        self.status: HostStatus | None = None
        self._said = ""
        self._without_inputs_us: int | None = None

    def look(self, progress: Callable[[str], None]) -> None:
        if self.host.process.poll() is not None:
            raise _Ended(self.host)
        try:
            self.status = self._client.status()
        except PeerError:
            return
        text = "; ".join(f"{r.replica}: {r.why or r.state}" for r in self.status.replicas if not answers(r))
        if text != self._said:
            self._said = text
            progress(text)

    def settled(self, all_answer: bool) -> bool:
        """Whether every replica serves its readers, or can only wait for inputs that are not there."""
        assert self.status is not None
        starting = [replica for replica in self.status.replicas if not answers(replica)]
        if any(replica.waits_for != "inputs" for replica in starting) or not all_answer:
            self._without_inputs_us = None
            return False
        if self._without_inputs_us is None:
            self._without_inputs_us = monotonic_us()
        return not starting or monotonic_us() - self._without_inputs_us > _INPUTS_US


class _Ended(Exception):
    def __init__(self, host: Launched) -> None:
        super().__init__(host.spec.name)
        self.host = host


def _gone(launched: Sequence[Launched]) -> str:
    return "nothing was left running" if len(launched) == 1 else "the others were stopped again"


def _take_back(launched: Sequence[Launched]) -> None:
    for host in launched:
        if host.process.poll() is None:
            host.process.terminate()
    for host in launched:
        try:
            host.process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            # Not waited for yet, so the number still means this process and the session that it leads.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(host.process.pid, signal.SIGKILL)
            host.process.wait()


def _last_words(host: Launched) -> str:
    """The last line that the host wrote: as a rule the sentence that says why."""
    try:
        with host.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(host.log_from, size - _LOG_TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    if not lines:
        return f"it ended with code {host.process.returncode} and said nothing"
    return "".join(char if char.isprintable() else " " for char in lines[-1].removeprefix("holdfast: "))
