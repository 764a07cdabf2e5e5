"""What a session on a cluster needs so that nobody else can join it, or listen to it (X1).

Spark authenticates nobody and encrypts nothing unless it is told to: whoever reaches the ports of a driver could run
code in it. Rules:
1. On this machine alone nothing is needed: everything listens on loopback.
2. YARN and Kubernetes make a secret for each application, so there we turn both on.
3. The secret of a standalone cluster is that of its master and workers, and only its owner can give it to them. So it
   must be given to us, too (`spark_token` of a deployment, or Spark's own settings). Without it a master that others
   can reach is refused; who knows that nobody can sets `spark.authenticate` to false.
4. What the driver serves to executors that do not see its streams (`stream_host`) goes by the same: on loopback as it
   is; elsewhere with TLS, by a certificate that was given (`spark.holdfast.certificate` and `.key`) or is made for the
   session, and that executors are told by Spark's own way; in the clear where somebody has said that nobody else can
   reach the cluster.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.inputs.network import Access, is_loopback
from holdfast.model.errors import UsageError

#: TLS is for Spark's pages, which we leave off; between drivers, executors and their files it is these.
_SECURE = {
    "spark.authenticate": "true", "spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true",
}  # fmt: skip


def with_secret(secret: str) -> dict[str, str]:
    """Settings for a cluster whose master and workers have this secret."""
    return {**_SECURE, "spark.authenticate.secret": secret}


def secured(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Settings to add to those that were given; `UsageError` where rule 3 asks for a secret."""
    if master.startswith("local"):
        return {}
    known = {**_defaults(), **given}
    if "spark.authenticate" not in known and "spark.authenticate.secret" not in known and master.startswith("spark://"):
        if all(is_loopback(address.rpartition(":")[0]) for address in master.removeprefix("spark://").split(",")):
            return {}
        raise UsageError(
            f"the cluster {master} is reached over a network: Spark must ask for the secret that its master and "
            "workers have (spark_token in the deployment, or spark.authenticate and spark.authenticate.secret); got "
            "none; set spark.authenticate to false only where nobody else can reach it"
        )
    if known.get("spark.authenticate", "true") != "true":
        return {}
    return {key: value for key, value in _SECURE.items() if key not in known}


def serving(settings: Mapping[str, str], folder: Path) -> tuple[Access, str]:
    """Where the driver serves its streams to executors (rule 4), and what they call that address. `settings` are those
    of a session that runs; `folder` is one of this user's own, for a certificate."""
    host = settings.get("spark.driver.host", "127.0.0.1")
    try:
        port = int(settings.get("spark.holdfast.port", "0"))
    except ValueError:
        raise UsageError(f"spark.holdfast.port must be a port; got {settings['spark.holdfast.port']!r}") from None
    bound = Access(host if is_loopback(host) else settings.get("spark.driver.bindAddress", host), port)
    if is_loopback(host) or settings.get("spark.authenticate", "true") != "true":
        return bound, host
    given = settings.get("spark.holdfast.certificate"), settings.get("spark.holdfast.key")
    if given[0] is not None and given[1] is not None:
        return bound._replace(certificate=Path(given[0]), key=Path(given[1])), host
    certificate, key = folder / "executors.pem", folder / "executors.key"
    make_certificate(certificate, key)
    return bound._replace(certificate=certificate, key=key), host


def make_certificate(certificate: Path, key: Path) -> None:
    """One for this session alone. Executors trust it because the driver says so, not by its name."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "3650", "-subj", "/CN=holdfast", "-keyout", str(key), "-out", str(certificate)]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or str(error)
        raise UsageError(
            f"executors that do not see the streams are served over TLS, for which openssl makes a certificate; "
            f"it could not ({why.strip()[:200]}); give spark.holdfast.certificate and spark.holdfast.key, or let all "
            f"machines mount the streams and set spark.holdfast.executors to folder"
        ) from None


def _defaults() -> dict[str, str]:
    """What the owner of this Spark has set for all sessions, as far as it is about this."""
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}
    words = [line.replace("=", " ", 1).split(None, 1) for line in lines if line.strip().startswith("spark.")]
    return {pair[0]: pair[1].strip() for pair in words if len(pair) == 2}
