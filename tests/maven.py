"""Servers for tests, brought from Maven's artifacts into the user's cache, each once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>holdfast</groupId><artifactId>{name}-for-tests</artifactId><version>1</version><dependencies>
{dependencies}
</dependencies></project>"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class Artifact(NamedTuple):
    """One server, or library, with all that it depends on."""

    name: str
    group: str
    artifact: str
    version: str
    without: tuple[str, ...] = ()
    """Jars that hide others, as patterns."""
    alone: bool = False
    """Without what it depends on: that is there already."""
    also: tuple[str, ...] = ()
    """What else is needed, as group:artifact:version, with what that depends on; alone if a "!" stands behind it."""

    @property
    def cache(self) -> Path:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        return home / "holdfast" / f"{self.name}-{self.version}"

    def jars(self) -> Path | None:
        """The folder of the server's jars; None if they were not fetched."""
        return self.cache / "lib" if (self.cache / "ready").exists() else None

    def _pom(self) -> str:
        own = f"{self.group}:{self.artifact}:{self.version}{'!' if self.alone else ''}"
        lines = [
            _DEPENDENCY.format(*one.removesuffix("!").split(":"), _ALONE if one.endswith("!") else "")
            for one in (own, *self.also)
        ]
        return _POM.format(name=self.name, dependencies="\n".join(lines))

    def fetch(self) -> str | None:
        """Bring the jars, unless they are there; why not, if they cannot be had."""
        cache = self.cache
        if self.jars() is not None:
            return None
        if shutil.which("mvn") is None:
            return "mvn is not installed"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "pom.xml").write_text(self._pom())
        command = ["mvn", "-q", "-B", "-f", str(cache / "pom.xml"), "dependency:copy-dependencies",
                   f"-DoutputDirectory={cache}/lib"]  # fmt: skip
        if subprocess.run(command, check=False).returncode:
            return "its artifacts could not be had from Maven"
        for pattern in self.without:
            for jar in (cache / "lib").glob(pattern):
                jar.unlink()
        (cache / "ready").touch()
        return None
