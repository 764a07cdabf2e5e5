"""Text that people write: schemas, deployments, contracts."""

from __future__ import annotations

import random
from pathlib import Path

from holdfast.host.deployment import load_deployment
from holdfast.load.contract_file import load_terms
from holdfast.model.schema import parse_schema, schema_text
from holdfast.model.time import duration_us, instant_us
from tests.fuzz.target import Target, Wrong, mutated

_WORDS = [
    "a",
    "b c",
    "int",
    "bigint",
    "decimal",
    "decimal(10,2)",
    "decimal(99999999999999999999,1)",
    "array<",
    "map<",
    "struct<",
    ">",
    ",",
    ":",
    "(",
    ")",
    "<",
    "`",
    "`x y`",
    "`\ud800`",
    "\n",
    "é",
    "1",
    "٣",
    "string",
    "stime",
    "timestamp",
    " ",
    "-",
    "array<" * 3000,
    "struct<a:" * 40,
    "a int," * 5000,
]
_VALID = "a bigint, b array<struct<x:int,y:map<string,decimal(10,2)>>>, `c d` timestamp"
_ROUND = 100


class Schemas(Target):
    def round(self, chance: random.Random) -> None:
        for _ in range(_ROUND):
            if chance.random() < 0.5:
                text = " ".join(chance.choices(_WORDS, k=chance.choice([2, 5, 12])))
            else:
                text = mutated(_VALID.encode(), chance, [w.encode("utf-8", "replace") for w in _WORDS]).decode(
                    "utf-8", "replace"
                )
            schema = self.refused_or("schema", lambda text=text: parse_schema(text), text)
            if schema is not None and not parse_schema(schema_text(schema)).equals(schema):
                raise Wrong(f"schema: {text!r:.300} is said to be {schema_text(schema)!r:.300}, which is another one")
            said = "".join(chance.choices("0123456789.eusmhd-+T:Z ", k=chance.randrange(1, 12)))
            self.refused_or("duration", lambda said=said: duration_us(said), said)
            self.refused_or("instant", lambda said=said: instant_us(said), said)


_DEPLOYMENT = """app: app.py
token: t.token
hosts:
  src: {address: "127.0.0.1:7401", root: src}
  a:   {address: "127.0.0.1:7402", root: a, load: terms.yaml}
sources: {monitor1: src, monitor2: src}
nodes: {active_sources: [a]}
spark: {spark.sql.shuffle.partitions: "2"}
"""
_TERMS = """participant: anna
capacity: {cpu: 1.0}
partners:
  ben: {address: "http://127.0.0.1:7502", token: anna-ben.token}
contracts:
  - {to: ben, price: 0.8 to 5.0, period: 30s, permits: [counts]}
"""
_PIECES = [
    b"&a ",
    b"*a",
    b"!!python/object:os.system ",
    b"[" * 40,
    b"{a: " * 40,
    b"\t",
    b"? ",
    b"- ",
    b": ",
    b"\n---\n",
    b"|",
    b">",
    b"'",
    b'"',
    b"%YAML 9.9\n",
    b"\0",
    b"\xff\xfe",
    b"nan",
    b"inf",
    b"1e400",
    b"-1",
    b"9" * 5000,
    b"0x",
    b"null",
    b"~",
    b"2001-01-01",
    b"[::1]:80",
    b"127.0.0.1:99999",
    b"../../x",
    b"<<: *a",
]


class Yaml(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "app.py").write_text("")

    def round(self, chance: random.Random) -> None:
        for _ in range(_ROUND // 4):
            for what, text, load in (("deployment", _DEPLOYMENT, load_deployment), ("contracts", _TERMS, load_terms)):
                raw = mutated(text.encode(), chance, _PIECES)
                path = self.folder / f"{what}.yaml"
                path.write_bytes(raw)
                self.refused_or(what, lambda load=load, path=path: load(path), raw)
