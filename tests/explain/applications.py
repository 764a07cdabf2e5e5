"""Small applications and where they run, for whoever explains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.app import App
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import Deployment, HostSpec


def application(**nodes: Mapping[str, Any]) -> App:
    """An application with these nodes; each is what `app.node` takes."""
    app = App("small")
    for name, options in nodes.items():
        app.node(name=name, **options)(_same)
    return app


def _same(rows: Any) -> Any:
    return rows


def deployed(
    app: App, hosts: str, sources: Mapping[str, str | tuple[str, ...]],
    nodes: Mapping[str, Sequence[str]] | None = None, sinks: Mapping[str, str] | None = None,
) -> Catalog:  # fmt: skip
    """The catalog of a deployment that lies in no file."""
    specs = tuple(HostSpec(name, "127.0.0.1", 7401 + n, Path(f"/none/{name}")) for n, name in enumerate(hosts.split()))
    sets = {node: tuple(names) for node, names in (nodes or {}).items()}
    homes = {stream: (home,) if isinstance(home, str) else home for stream, home in sources.items()}
    file = Path("/none/small.yaml")
    return Catalog(
        app.diagram(), Deployment(file, "small.py", file.parent / "t", specs, homes, sets, sinks=sinks or {})
    )
