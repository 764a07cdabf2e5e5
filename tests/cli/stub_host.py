"""Stands in for `holdfast.host.deployed` in a process of its own: speaks a host's HTTP API and has no Spark.

Files in the host's root make it misbehave: `broken` (ends at once), `mute` (never listens), `deaf` (says yes to a stop
and goes on), `stubborn` (does not heed SIGTERM either).
"""

from __future__ import annotations

import hmac
import os
import signal
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.host.catalog import Catalog
from holdfast.host.deployment import Deployment, load_deployment
from holdfast.model.errors import UsageError

#: 2026-01-01, so that positions are known.
POSITION_US = 1_767_225_600_000_000
STATES = {"a": "STABLE", "b": "UP_FAILURE"}
#: Only that of one has removed something.
RETENTION = {"a": "for 1h; 5 tuples to 2025-12-31T23:00:00 removed"}
#: Files in the root that make its replicas wait or fail.
FLAWS = {
    "without-inputs": {"state": "RECOVERING", "waits_for": "inputs"},
    "slow": {"state": "WAITING", "waits_for": "spark"},
    "failed": {"state": "FAILED"},
}


def run_host(deployment: Deployment, name: str, extend: object = None, engine: object = None) -> None:
    spec = deployment.host(name)
    catalog = Catalog(deployment.load_app().diagram(), deployment)
    if (spec.root / "broken").exists():
        raise UsageError("the stub was told to break")
    if (spec.root / "stubborn").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if (spec.root / "mute").exists():
        time.sleep(600)
    server = _Server(spec.root, catalog, name, deployment.token())
    server.serve(spec.ip, spec.port, spec.tls)


class _Server:
    def __init__(self, root: Path, catalog: Catalog, name: str, token: str) -> None:
        self._root, self._catalog, self._name, self._token = root, catalog, name, token
        self._cuts: list[str] = []

    def serve(self, ip: str, port: int, tls: Any) -> None:
        app = Starlette(
            routes=[
                Route("/v1/status", self.status),
                Route("/v1/faults", self.faults, methods=["POST"]),
                Route("/v1/stop", self.stop, methods=["POST"]),
                Route("/v1/reload", self.reload, methods=["POST"]),
            ]
        )
        files = {} if tls is None else {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
        config = uvicorn.Config(app, host=ip, port=port, log_config=None, lifespan="off", **files)
        self._server = uvicorn.Server(config)
        if (self._root / "stubborn").exists():
            self._server.capture_signals = _heed_nothing  # type: ignore[method-assign,assignment]
        self._server.run()

    def _stranger(self, request: Request) -> Response | None:
        said = request.headers.get("authorization", "")
        if hmac.compare_digest(said.encode(), f"Bearer {self._token}".encode()):
            return None
        return JSONResponse({"error": "who are you?"}, 401)

    async def status(self, request: Request) -> Response:
        if (self._root / "nonsense").exists():
            return JSONResponse(["?"])
        replicas = []
        for node in self._catalog.nodes_on(self._name):
            state = STATES.get(self._name, "RECOVERING")
            wait = {}
            for flaw, said in FLAWS.items():
                if (self._root / flaw).exists():
                    state, wait = said["state"], {**said, "why": f"the stub is {flaw}"}
            plan = self._catalog.plan_of(node.name, self._name, 1_000_000)
            replicas.append({
                "replica": plan.replica, "node": node.name, "state": state, "stable_until_us": POSITION_US,
                "frontier_us": POSITION_US + 1_000_000,
                "output": {"stream": node.output, "state": state, "boundary_us": POSITION_US,
                           "fresh": state != "STABLE", "retention": RETENTION.get(self._name, "all")},
                "fork": {"id": 3, "state": "none" if state == "STABLE" else "RUNNING"},
                "inputs": [
                    {"stream": i.stream, "reading": list(i.producers[:1]), "boundary_us": POSITION_US,
                     "failing": state == "UP_FAILURE" and i.stream == "monitor2"}
                    for i in plan.inputs
                ],
                "word_of_a_newer_host": True, **wait,
            })  # fmt: skip
        said = {"host": self._name, "replicas": replicas, "cuts": self._cuts}
        return self._stranger(request) or JSONResponse(said)

    async def faults(self, request: Request) -> Response:
        said = await request.json()
        stranger = self._stranger(request)
        if stranger is None:
            self._cuts = [c for c in self._cuts if c not in said["heal"]]
            self._cuts += [c for c in said["cut"] if c not in self._cuts]
        return stranger or JSONResponse({"cuts": self._cuts})

    async def reload(self, request: Request) -> Response:
        deployment = self._catalog.deployment
        assert deployment is not None
        fresh = load_deployment(deployment.file)
        self._catalog = Catalog(fresh.load_app().diagram(), fresh)
        placed = {node: list(hosts) for node, hosts in self._catalog.placement.replica_sets.items()}
        return self._stranger(request) or JSONResponse({"host": self._name, "placed": placed})

    async def stop(self, request: Request) -> Response:
        stranger = self._stranger(request)
        if stranger is None and not (self._root / "deaf").exists():
            self._server.should_exit = True
        return stranger or JSONResponse({})


def _heed_nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


#: What `holdfast host` runs at its start in a test: it finds this file where the real host would be.
SITE = f"""
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "holdfast.host.deployed":
            return importlib.util.spec_from_file_location(name, {os.path.abspath(__file__)!r})
sys.meta_path.insert(0, Finder())
"""
