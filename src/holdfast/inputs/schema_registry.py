"""A schema registry: a value begins with a zero byte and the number of its schema.

Rules:
1. A schema that the registry does not have makes a bad record. A registry that does not answer is waited for; one that
   refuses us, or that we do not trust, is said at once.
2. Types that a schema takes from others (`references`) are asked for as well, and theirs.
3. What lets us in stands among the settings of Kafka's client, under the names that its other clients have for it with
   `schema.registry.` in front. It is never part of a message.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from holdfast.inputs.avro_schema import parsed_schema
from holdfast.model.errors import PeerError, SchemaError, UsageError

PREFIX = "schema.registry."
SETTINGS = (
    "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.key.password",
)  # fmt: skip
#: Schemas that are remembered; a topic has a handful in its life.
_SCHEMAS_MAX = 1000
#: Schemas that one may refer to, those that they refer to included: a registry that never ends must not keep us.
_REFERENCES_MAX = 100
_ANSWER_S = 10.0


class Registry:
    """One registry. `settings`: those of `SETTINGS`, without the prefix."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"a schema registry must be an address such as http://registry:8081; got {url!r}")
        self._url, self._settings = url.rstrip("/"), dict(settings or {})
        if unknown := self._settings.keys() - set(SETTINGS):
            raise UsageError(
                f"settings of the schema registry must be of {', '.join(PREFIX + name for name in SETTINGS)}; got "
                f"{', '.join(PREFIX + name for name in sorted(unknown))}"
            )
        self._known: dict[int, Any] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registry) and (self._url, self._settings) == (other._url, other._settings)

    def __hash__(self) -> int:
        return hash(self._url)

    def let_in(self, settings: Mapping[str, str]) -> Registry:
        """The same with what lets us in."""
        return Registry(self._url, settings)

    def __call__(self, value: bytes, where: str) -> tuple[Any, bytes]:
        """The schema of a value, and the bytes that it describes."""
        if len(value) < 5 or value[0] != 0:
            raise SchemaError(f"{where}: a value must begin with a zero byte and the number of its schema; got others")
        number = int.from_bytes(value[1:5], "big")
        if number not in self._known:
            if len(self._known) >= _SCHEMAS_MAX:
                self._known.clear()
            self._known[number] = self._ask(number, where)
        return self._known[number], value[5:]

    def _ask(self, number: int, where: str) -> Any:
        import fastavro

        found = self._get(f"schemas/ids/{number}")
        if found is None:
            raise SchemaError(f"{where}: its schema must be in the registry; it has none with number {number}")
        try:
            references: dict[tuple[str, str], Any] = {}
            self._collect(found, references)
            return parsed_schema(fastavro, json.loads(found["schema"]), list(references.values()))
        except SchemaError as error:
            why = str(error)
        except (PeerError, UsageError):
            raise
        # The library raises whatever its parser trips over.
        except Exception as error:
            why = str(error)
        raise SchemaError(f"{where}: schema {number} of the registry must be Avro; {why}")

    def _collect(self, answer: Mapping[str, Any], found: dict[tuple[str, str], Any]) -> None:
        """Rule 2: in an order in which each stands behind those that it refers to."""
        for one in answer.get("references") or ():
            key = (str(one["subject"]), str(one["version"]))
            if key in found:
                continue
            if len(found) >= _REFERENCES_MAX:
                raise SchemaError(f"it must refer to {_REFERENCES_MAX} others at most")
            found[key] = None  # So that schemas that refer to each other are asked for once.
            other = self._get(f"subjects/{quote(key[0], safe='')}/versions/{quote(key[1], safe='')}")
            if other is None:
                raise SchemaError(f"it refers to version {key[1]} of {key[0]}, which the registry does not have")
            self._collect(other, found)
            del found[key]
            found[key] = json.loads(other["schema"])

    def _get(self, path: str) -> dict[str, Any] | None:
        """One answer; None: there is no such thing."""
        import httpx  # Here: it takes longer to load than the rest of a command, and few topics have a registry.

        name, colon, password = self._settings.get("basic.auth.user.info", "").partition(":")
        token = self._settings.get("bearer.auth.token")
        try:
            answer = httpx.get(
                f"{self._url}/{path}", timeout=_ANSWER_S, auth=(name, password) if colon else None,
                headers={} if token is None else {"Authorization": f"Bearer {token}"}, verify=self._trust(),
            )  # fmt: skip
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UsageError(
                    f"the schema registry must have a certificate that we trust ({PREFIX}ssl.ca.location in config); "
                    f"{error}"
                ) from None
            raise PeerError(f"the schema registry does not answer: {error}; trying again") from None
        if answer.status_code in (401, 403):
            raise UsageError(
                f"the schema registry must let us in; it answers {answer.status_code}; check its address, and "
                f"{PREFIX}basic.auth.user.info or {PREFIX}bearer.auth.token in config"
            )
        if answer.status_code == 404:
            return None
        if not answer.is_success:
            raise PeerError(f"the schema registry answers {answer.status_code}; trying again")
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise PeerError("the schema registry must answer with a JSON object; it answers otherwise; trying again")
        return found

    def _trust(self) -> ssl.SSLContext | bool:
        authority, ours = (self._settings.get(f"ssl.{name}.location") for name in ("ca", "certificate"))
        if authority is None and ours is None:
            return True
        try:
            context = ssl.create_default_context(cafile=authority)
            if ours is not None:
                key, password = self._settings.get("ssl.key.location"), self._settings.get("ssl.key.password")
                context.load_cert_chain(ours, key, password)
            return context
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the certificates for the schema registry ({PREFIX}ssl.… in config) must be files in PEM; {error}"
            ) from None
