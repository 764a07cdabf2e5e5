"""A deployment file is read as it was meant, or refused with the sentence that mends it."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import App
from holdfast.host.deployment import Deployment, load_deployment
from holdfast.host.link import HttpLink
from holdfast.host.sources import sources_on
from holdfast.inputs.credentials import Role
from holdfast.inputs.kafka import KafkaSource
from holdfast.inputs.network import Access
from holdfast.inputs.source import SourceSpec
from holdfast.inputs.token_file import make_token, read_token
from holdfast.model.errors import UsageError
from holdfast.model.schema import parse_schema

Write = Callable[[str], Path]

GOOD = """
app: netmon.py
token: secret.token
hosts:
  a: {address: "127.0.0.1:7401", root: "a/"}
  b: {address: "127.0.0.1:7402", root: "b/", master: "spark://10.0.0.1:7077"}
  src: {address: "[::1]:7403", root: "src/", tls: {cert: src.pem, key: src.key, ca: ca.pem}}
sources: {monitor1: src, monitor2: src}
nodes: {active: [a, b]}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "netmon.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def _path_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loaded application puts on the path is gone after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def refused(path: Path, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as caught:
        load_deployment(path)
    assert "\n" not in str(caught.value)


def test_every_word_is_understood(write: Write, tmp_path: Path) -> None:
    deployment = load_deployment(write(GOOD))
    assert (deployment.app, deployment.token_file) == ("netmon.py", tmp_path / "secret.token")
    a, b, src = deployment.hosts
    assert (a.name, a.address, a.url, a.root) == ("a", "127.0.0.1:7401", "http://127.0.0.1:7401", tmp_path / "a")
    assert (b.master, b.tls) == ("spark://10.0.0.1:7077", None)
    assert src.tls is not None
    assert (src.address, src.url) == ("[::1]:7403", "https://[::1]:7403")
    assert (src.tls.certificate, src.tls.authority) == (tmp_path / "src.pem", tmp_path / "ca.pem")
    assert dict(deployment.sources) == {"monitor1": ("src",), "monitor2": ("src",)}
    assert dict(deployment.nodes) == {"active": ("a", "b")}


def test_settings_of_spark_are_for_all_hosts_and_a_hosts_own_come_first(write: Write) -> None:
    text = GOOD.replace('root: "a/"', 'root: "a/", spark: {spark.ui.enabled: "true", spark.driver.memory: 1g}')
    a, b, _ = load_deployment(write(text + "spark: {spark.driver.memory: 2g}\n")).hosts
    assert dict(a.spark) == {"spark.ui.enabled": "true", "spark.driver.memory": "1g"}
    assert dict(b.spark) == {"spark.driver.memory": "2g"}
    refused(write(text + "spark: {driver.memory: 2g}\n"), "got 'driver.memory'")


def test_scalars_are_text_whatever_they_look_like(write: Write) -> None:
    deployment = load_deployment(
        write('app: on\nhosts: {no: {address: "127.0.0.1:7401", root: 1}}\nsources: {1: no}\n')
    )
    assert (deployment.app, deployment.hosts[0].name, deployment.hosts[0].root.name) == ("on", "no", "1")
    assert dict(deployment.sources) == {"1": ("no",)}
    assert deployment.token_file.name == "holdfast.token"


HOST = '{address: "127.0.0.1:7401", root: "a/"}'

REFUSED = [
    ("app: x.py\nhosts: {}\n", "at least one host"),
    (f"hosts: {{a: {HOST}}}\n", "missing required field `app`"),
    ("", "Expected `object`"),
    (f"app: x.py\nhosts: {{a: {HOST}}}\nreplicas: 2\n", "unknown field `replicas`"),
    ('app: x.py\nhosts: {a: {address: "127.0.0.1:7401", root: a, por: 1}}\n', "unknown field `por`"),
    ("app: x.py\nhosts: {a: {root: a}}\n", "missing required field `address`"),
    ("app: x.py\nhosts: {A: {address: x, root: a}}\n", "the name of a host"),
    ("app: x.py\nhosts: {a: {address: 7401, root: a}}\n", "must look like 127.0.0.1:7401"),
    ('app: x.py\nhosts: {a: {address: "127.0.0.1:0", root: a}}\n', "must look like 127.0.0.1:7401"),
    ('app: x.py\nhosts: {a: {address: "127.0.0.1:65536", root: a}}\n', "must look like 127.0.0.1:7401"),
    ('app: x.py\nhosts: {a: {address: "::1:7401", root: a}}\n', "must look like 127.0.0.1:7401"),
    ('app: x.py\nhosts: {a: {address: "10.0.0.1:7401", root: a}}\n', "that needs TLS"),
    ('app: x.py\nhosts: {a: {address: "machine:7401", root: a}}\n', "that needs TLS"),
    ('app: x.py\nhosts: {a: {address: "0.0.0.0:7401", root: a, tls: {cert: c, key: k}}}\n', "can call"),
    ('app: x.py\nhosts: {a: {address: "127.0.0.1:7401", root: ""}}\n', "a folder of its own"),
    (f"app: x.py\nhosts: {{a: {HOST}, b: {HOST}}}\n", "addresses of their own"),
    (f'app: x.py\nhosts: {{a: {HOST}, b: {{address: "localhost:7401", root: b}}}}\n', "addresses of their own"),
    (f'app: x.py\nhosts: {{a: {HOST}, b: {{address: "127.0.0.1:7402", root: a}}}}\n', "roots apart"),
    (f'app: x.py\nhosts: {{a: {HOST}, b: {{address: "127.0.0.1:7402", root: a/b}}}}\n', "roots apart"),
    (f'app: x.py\nhosts: {{a: {HOST}, b: {{address: "127.0.0.1:7402", root: x/../a}}}}\n', "roots apart"),
    (f"app: x.py\nhosts: {{a: {HOST}}}\nsources: {{s: src}}\n", "no host 'src'"),
    (f"app: x.py\nhosts: {{a: {HOST}}}\nnodes: {{n: [a, c]}}\n", "no host 'c'"),
    (f"app: x.py\nhosts: {{a: {HOST}}}\nnodes: {{n: [a, a]}}\n", "got 'a' twice"),
    (f"app: x.py\nhosts: {{a: {HOST}}}\nnodes: {{n: []}}\n", "at least one host; got an empty list"),
    (f"app: x.py\nhosts: {{a: {HOST}}}\nnodes: {{n: a}}\n", "Expected `array`"),
    (f"app: x.py\nhosts: {{a: {HOST}, a: {HOST}}}\n", "line 2: the key 'a' comes twice"),
    ("app: &x y\nhosts: *x\n", "line 1: anchors and aliases are not allowed"),
    ("app: *x\n", "line 1: anchors and aliases are not allowed"),
    ("app: !!python/object/apply:os.system [ls]\n", "line 1: tags such as"),
    ("app: !x y\n", "line 1: tags such as '!x'"),
    ("? [a]\n: b\n", "a key must be plain text"),
    ("app: [\n", "line 2"),
    ("app: x\n---\napp: y\n", "line 2"),
    ("app: \x07\n", "is not YAML"),
    ("[" * 5000, "nested 16 deep at most"),
    (f"app: {'a' * 5000}", "must have 1024 characters at most; it has 5000"),
    ("app: x # " + "x" * 300_000, "262144 bytes at most"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_a_file_that_cannot_be_meant_is_refused_in_one_line(write: Write, text: str, why: str) -> None:
    refused(write(text), why)


def test_tls_may_be_left_to_a_mesh_by_that_word(write: Write) -> None:
    (host,) = load_deployment(write('app: x.py\nhosts: {a: {address: "10.0.0.1:7401", root: a, tls: mesh}}\n')).hosts
    assert (host.mesh, host.tls, host.url) == (True, None, "http://10.0.0.1:7401")
    refused(write('app: x.py\nhosts: {a: {address: "10.0.0.1:7401", root: a, tls: none}}\n'), "tls")
    HttpLink(host.url, "token", mesh=host.mesh)
    with pytest.raises(UsageError, match="in the clear"):
        HttpLink(host.url, "token")
    Access(host.ip, host.port, token="t" * 16, mesh=True).check()
    with pytest.raises(UsageError, match="needs a token"):
        Access(host.ip, host.port, mesh=True).check()


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path, write: Write) -> None:
    refused(tmp_path / "none.yaml", "cannot be read")
    path = write("")
    path.write_bytes(b"app: \xff\xfe\n")
    refused(path, "is not YAML")


def test_roots_may_be_equal_on_different_machines(write: Write) -> None:
    tls = "tls: {cert: c, key: k}"
    text = "app: x.py\nhosts:\n" + "".join(
        f'  h{n}: {{address: "10.0.0.{n}:7401", root: /var/holdfast, {tls}}}\n' for n in (1, 2)
    )
    assert len(load_deployment(write(text)).hosts) == 2


def test_a_root_reached_by_a_link_is_the_same_root(write: Write, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(write(f'app: x.py\nhosts: {{a: {HOST}, b: {{address: "127.0.0.1:7402", root: b}}}}\n'), "roots apart")


# --- the token


@pytest.fixture
def deployment(write: Write) -> Deployment:
    return load_deployment(write(GOOD))


def test_a_viewers_token_is_a_second_one_and_is_used_where_the_first_cannot_be_read(write: Write) -> None:
    refused(write(GOOD + "view_token: secret.token\n"), "must name another file for view_token than for token")
    assert load_deployment(write(GOOD)).view_token() is None
    deployment = load_deployment(write(GOOD + "view_token: view.token\n"))
    assert deployment.make_token()
    view = deployment.view_token()
    assert view not in (None, deployment.token())
    assert deployment.looking_token() == deployment.token()
    deployment.token_file.unlink()
    assert deployment.looking_token() == view


def test_a_token_is_made_once_for_its_owner_alone(deployment: Deployment, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        deployment.token()
    assert deployment.make_token()
    token = deployment.token()
    assert len(token) >= 32
    assert stat.S_IMODE(deployment.token_file.stat().st_mode) == 0o600
    assert not deployment.make_token()
    assert deployment.token() == token
    assert sorted(p.name for p in tmp_path.iterdir()) == ["netmon.yaml", "secret.token"]


@pytest.mark.parametrize("bad", ["short", "", "x" * 5000, "a token with spaces in it", "tökentökentöken…"])
def test_a_weak_token_is_refused(deployment: Deployment, bad: str) -> None:
    deployment.token_file.write_text(bad)
    deployment.token_file.chmod(0o600)
    with pytest.raises(UsageError, match="16 or more printable"):
        deployment.token()


def test_a_token_that_others_can_read_is_refused(deployment: Deployment) -> None:
    deployment.make_token()
    deployment.token_file.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        deployment.token()


# --- the application


def load(write: Write, tmp_path: Path, target: str, code: str) -> str:
    (tmp_path / "netmon.py").write_text(code)
    deployment = load_deployment(write(f'app: "{target}"\nhosts: {{a: {HOST}}}\n'))
    return deployment.load_app().name


def test_the_application_is_found_in_a_file_by_name_or_alone(write: Write, tmp_path: Path) -> None:
    one = "import holdfast\nfirst = also = holdfast.App('one')\n"
    assert load(write, tmp_path, "netmon.py", one) == "one"
    two = one + "second = holdfast.App('two')\n"
    assert load(write, tmp_path, "netmon.py:second", two) == "two"
    with pytest.raises(UsageError, match="must hold one App; got "):
        load(write, tmp_path, "netmon.py", two)
    with pytest.raises(UsageError, match="must name an App; got NoneType"):
        load(write, tmp_path, "netmon.py:third", two)
    with pytest.raises(UsageError, match="got none"):
        load(write, tmp_path, "netmon.py", "")


def test_a_file_may_use_its_neighbours_and_dataclasses(write: Write, tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_netmon.py").write_text("NAME = 'near'\n")
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport holdfast\n"
        "from neighbour_of_netmon import NAME\n@dataclass\nclass C:\n    x: int\napp = holdfast.App(NAME)\n"
    )
    assert load(write, tmp_path, "netmon.py", code) == "near"
    assert load(write, tmp_path, "./netmon.py:app", code) == "near"


def test_the_application_may_be_a_module(write: Write, tmp_path: Path) -> None:
    (tmp_path / "a_module_of_mine.py").write_text("import holdfast\napp = holdfast.App('mine')\n")
    assert load(write, tmp_path, "a_module_of_mine:app", "") == "mine"
    with pytest.raises(UsageError, match="No module named"):
        load(write, tmp_path, "no_such_module_here", "")


def test_functions_of_an_application_reach_spark_s_workers_without_the_file(write: Write, tmp_path: Path) -> None:
    """Spark ships them with its own cloudpickle; a worker knows neither the file nor its folder."""
    from pyspark import cloudpickle

    code = (
        "import holdfast\nTEN = 10\ndef times(x):\n    return TEN * x\napp = holdfast.App('a')\n"
        "@app.node(inputs=['s'])\ndef n(rows):\n    return times(rows)\n"
    )
    (tmp_path / "netmon.py").write_text(code)
    app = load_deployment(write(f"app: netmon.py\nhosts: {{a: {HOST}}}\n")).load_app()
    shipped = cloudpickle.dumps(app.diagram().node("n").function)
    (tmp_path / "netmon.py").unlink()
    worker = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(4))"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path != str(tmp_path))
    done = subprocess.run([sys.executable, "-c", worker], input=shipped, capture_output=True, env=env, check=False)
    assert done.stdout == b"40\n", done


def test_an_application_that_was_edited_twice_in_a_second_is_the_one_that_stands_there(
    write: Write, tmp_path: Path
) -> None:
    """Python tells cached bytecode by the second and the length of its source."""
    file, second = tmp_path / "netmon.py", 1_800_000_000
    for name in ("one", "two"):
        code = f"import holdfast\napp = holdfast.App('{name}')\n"
        deployment = load_deployment(write(f"app: netmon.py\nhosts: {{a: {HOST}}}\n"))
        file.write_text(code)
        os.utime(file, (second, second))
        assert deployment.load_app().name == name


def test_a_mistake_in_the_application_is_named_with_its_line(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be run: ZeroDivisionError: division by zero \(netmon.py line 2\)"):
        load(write, tmp_path, "netmon.py", "x = 1\ny = x / 0\n")
    with pytest.raises(UsageError, match="cannot be run: SyntaxError"):
        load(write, tmp_path, "netmon.py", "def\n")
    with pytest.raises(UsageError, match="there is none at"):
        load(write, tmp_path, "other.py", "")
    with pytest.raises(UsageError, match="the name of an application"):
        load(write, tmp_path, "netmon.py", "import holdfast\nholdfast.App('Bad Name')\n")


ROLES = """
app: netmon.py
token: operator.token
view_token: view.token
peer_token: peer.token
spark_token: spark.token
readers: {dashboard: {token: dashboard.token, streams: [active]}}
hosts: {a: {address: "127.0.0.1:7401", root: "a/", master: "spark://10.0.0.1:7077"}}
"""


def test_each_role_has_a_token_of_its_own(write: Write, tmp_path: Path) -> None:
    deployment = load_deployment(write(ROLES))
    deployment.make_token()
    keys = deployment.keyring()
    for name, role in (("operator", Role.OPERATOR), ("view", Role.VIEWER), ("peer", Role.PEER),
                       ("dashboard", Role.READER)):  # fmt: skip
        found = keys.who(read_token(tmp_path / f"{name}.token"))
        assert found is not None
        assert found.role is role
        assert found.sees("other") is (role is not Role.READER)
    assert deployment.peer_file().current() == read_token(tmp_path / "peer.token")
    (tmp_path / "view.token").write_text((tmp_path / "peer.token").read_text())
    with pytest.raises(UsageError, match="must hold different tokens"):
        deployment.keyring()


def test_the_secret_of_a_cluster_comes_from_a_file(write: Write, tmp_path: Path) -> None:
    deployment = load_deployment(write(ROLES))
    make_token(tmp_path / "spark.token")
    settings = deployment.spark_settings(deployment.hosts[0])
    assert settings["spark.authenticate.secret"] == read_token(tmp_path / "spark.token")
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"


def test_a_reader_without_streams_and_a_file_for_two_roles_are_refused(write: Write) -> None:
    refused(write(ROLES.replace("[active]", "[]")), "must have streams that it may see")
    refused(
        write(ROLES.replace("peer.token", "view.token")), "must name another file for view_token than for peer_token"
    )


def test_a_source_may_say_what_fills_it(write: Write, tmp_path: Path) -> None:
    words = "{brokers: 'b:9092', slack: 2s, columns: {key: who}, config_file: client.properties}"
    fed = f"{{host: src, kafka: {words}, bucket: 1s, schema: 'n bigint, who string'}}"
    (tmp_path / "client.properties").write_text("sasl.password=hush\n")
    deployment = load_deployment(write(GOOD.replace("monitor2: src", f"monitor2: {fed}")))
    assert deployment.sources == {"monitor1": ("src",), "monitor2": ("src",)}
    (spec,) = deployment.fed.values()
    assert (spec.stream, spec.bucket_us) == ("monitor2", 1_000_000)
    assert spec.source.text() == "topic monitor2 of Kafka at b:9092"
    assert "hush" not in repr(deployment)
    for word, committed in (("", True), (", committed: true", True), (", committed: false", False)):
        said = f"monitor2: {{host: src, kafka: {{brokers: b{word}}}}}"
        (spec,) = load_deployment(write(GOOD.replace("monitor2: src", said))).fed.values()
        assert isinstance(spec.source, KafkaSource)
        assert spec.source.committed == committed


def test_a_source_may_name_a_class_of_protocol_buffers_by_its_module(write: Write, tmp_path: Path) -> None:
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptors.FileDescriptorProto(name="flow.proto", package="net", syntax="proto3")
    file.message_type.add(name="Flow").field.add(name="n", number=1, type=3, label=1)
    (tmp_path / "flow_pb2.py").write_text(
        "from google.protobuf import descriptor_pb2, descriptor_pool, message_factory\n"
        "pool = descriptor_pool.DescriptorPool()\n"
        f"pool.AddSerializedFile({file.SerializeToString()!r})\n"
        "Flow = message_factory.GetMessageClass(pool.FindMessageTypeByName('net.Flow'))\n"
    )
    app = App("net")
    app.node(inputs=["monitor1", "monitor2"], name="active")(lambda rows: rows)

    def sources(value: str) -> dict[str, SourceSpec]:
        fed = f"{{host: src, kafka: {{brokers: b, value: {value}}}}}"
        deployment = load_deployment(write(GOOD.replace("monitor2: src", f"monitor2: {fed}")))
        assert sources_on("a", app, deployment) == {}, "who does not read the topic need not have the class"
        return sources_on("src", app, deployment)

    source = sources("{protobuf: 'flow_pb2:Flow'}")["monitor2"].source
    assert isinstance(source, KafkaSource)
    assert source.values is not None
    assert source.values(parse_schema("n bigint"), "monitor2").row(b"\x08\x07", "here") == {"n": 7}
    for value, why in (
        ("{protobuf: 'nowhere_pb2:Flow'}", "source 'monitor2' in .*nowhere_pb2:Flow .*No module named 'nowhere_pb2'"),
        (
            "{protobuf: 'flow_pb2:Flaw'}",
            "has no attribute 'Flaw'; generate its module with protoc",
        ),
        ("{protobuf: 'flow_pb2:pool'}", "must be a class generated by Protocol Buffers; it is <"),
        ("{protobuf: Flow}", "must be told as module:Class; got 'Flow'"),
        ("{proto: 'flow_pb2:Flow'}", "missing required field `protobuf`|unknown field `proto`"),
    ):
        with pytest.raises(UsageError, match=why):
            sources(value)


def test_a_source_may_be_a_table(write: Write) -> None:
    words = "{url: 'postgresql://ann:hush@db/shop', columns: [id, n], snapshot: false, dead_letters: bad.json}"
    deployment = load_deployment(write(GOOD.replace("monitor2: src", f"monitor2: {{host: src, postgres: {words}}}")))
    (spec,) = deployment.fed.values()
    assert spec.source.text() == "changes of table monitor2 of PostgreSQL at db/shop"
    assert "hush" not in repr(deployment)


def test_a_source_that_cannot_be_filled_as_it_says_is_refused(write: Write) -> None:
    def with_source(text: str) -> Path:
        return write(GOOD.replace("monitor2: src", f"monitor2: {text}"))

    refused(with_source("{host: src, kafka: {brokers: b, slack: soon}}"), "a duration must look like")
    refused(with_source("{host: src, kafka: {brokers: b, speed: high}}"), "unknown field `speed`")
    refused(with_source("{host: src, kafka: {brokers: b, committed: no}}"), "Invalid enum value 'no'")
    refused(with_source("{host: src, bucket: 1s}"), "schema and bucket go with kafka or postgres")
    refused(with_source("{host: src, postgres: {url: u, table: a.b.c}}"), "a name, or schema.name")
    refused(with_source("{host: src, postgres: {url: u}, kafka: {brokers: b}}"), "kafka or postgres, not both")
    refused(with_source("{host: nowhere}"), "no host 'nowhere'")
