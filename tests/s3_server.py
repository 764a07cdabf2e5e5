"""A real S3 server for tests and benches: moto's, as a process of its own on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.clock import monotonic_us, pause

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
_REQUEST = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[2], method=sys.argv[1]), timeout=30).close()"


class S3Server:
    """Running until `stop`. `environment` is what a process needs to reach it. `prefix`: a command in whose network it
    runs, at the address `host`."""

    def __init__(self, log: str = os.devnull, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        self._prefix = tuple(prefix)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.endpoint = f"http://{host}:{self.port}"
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT": self.endpoint}
        self._log = open(log, "wb")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "moto.server", "-H", host, "-p", str(self.port)],
            stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        until = monotonic_us() + 60_000_000
        while True:
            try:
                self._request("GET", "moto-api/")
                break
            except (OSError, subprocess.CalledProcessError):
                if self._process.poll() is not None or monotonic_us() > until:
                    raise
                pause(50_000)

    def make_bucket(self, name: str) -> None:
        self._request("PUT", name)

    def _request(self, method: str, path: str) -> None:
        if self._prefix:
            command = [*self._prefix, sys.executable, "-c", _REQUEST, method, f"{self.endpoint}/{path}"]
            subprocess.run(command, check=True, capture_output=True)
            return
        request = urllib.request.Request(f"{self.endpoint}/{path}", method=method)
        urllib.request.urlopen(request, timeout=30).close()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()


#: Answers every request with the status and the code that the bucket is called after: `403-AccessDenied`.
_REFUSING = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Refusing(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, code = self.path.partition("?")[0].strip("/").split("/")[0].split("-")
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer
    log_message = lambda self, *_: None

server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def refusing_server() -> Iterator[str]:
    """An object store, or a catalog of tables, that lets nobody in. A process of its own, since some clients hold
    Python's lock while they wait for the answer."""
    with subprocess.Popen([sys.executable, "-c", _REFUSING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()
