"""What people run it with: the image, the manifests for Kubernetes and the compose file say what Holdfast understands.

There is no container runtime where these run as a rule: what can be checked without one is.
"""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from holdfast.diagram import Diagram
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import Deployment, load_deployment
from holdfast.spark.cluster_security import serving

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES, EXECUTORS, COMPOSE = DEPLOY / "kubernetes", DEPLOY / "kubernetes-executors", DEPLOY / "compose"


def manifests_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.yaml") if p.name not in ("kustomization.yaml", "netmon.yaml"))


MANIFESTS = manifests_of(KUBERNETES)


def documents(*paths: Path) -> list[dict[str, Any]]:
    return [d for path in paths for d in yaml.safe_load_all(path.read_text()) if d]


def of_kind(kind: str, folder: Path = KUBERNETES) -> dict[str, dict[str, Any]]:
    return {d["metadata"]["name"]: d for d in documents(*manifests_of(folder)) if d["kind"] == kind}


@pytest.fixture(autouse=True)
def _path_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


@pytest.mark.parametrize("path", [*MANIFESTS, *manifests_of(EXECUTORS)], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_manifests_are_what_kubernetes_understands(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, "1.30", strict=True)


def test_the_schema_would_notice_a_wrong_word() -> None:
    (first, *_) = documents(KUBERNETES / "host-a.yaml")
    first["spec"]["clusterIp"] = "None"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(first, "1.30", strict=True)


def deployment_of(
    tmp_path: Path, deployment: Path = KUBERNETES, program: Path = DEPLOY.parent / "examples"
) -> Deployment:
    shutil.copy(deployment / "netmon.yaml", tmp_path / "netmon.yaml")
    shutil.copy(program / "netmon.py", tmp_path / "netmon.py")
    return load_deployment(tmp_path / "netmon.yaml")


def test_every_host_of_the_deployment_has_its_pod_volume_and_name(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path)
    Catalog(deployment.load_app().diagram(), deployment)
    sets, services = of_kind("StatefulSet"), of_kind("Service")
    assert {f"holdfast-{h.name}" for h in deployment.hosts} == sets.keys() == services.keys()
    for host in deployment.hosts:
        name = f"holdfast-{host.name}"
        spec = sets[name]["spec"]
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert spec["serviceName"] == name
        assert spec["replicas"] == 1
        assert host.address == f"{name}-0.{name}:7401"
        assert container["args"] == ["host", "/etc/holdfast/netmon.yaml", host.name]
        mounts = {m["mountPath"] for m in container["volumeMounts"]}
        assert {"/data", "/etc/holdfast", "/run/holdfast"} <= mounts
        assert host.root.parent == Path("/data")
        probes = [container[p]["httpGet"] for p in ("livenessProbe", "readinessProbe")]
        assert [(p["path"], p["scheme"]) for p in probes] == [("/healthz", "HTTPS"), ("/readyz", "HTTPS")]


def test_no_pod_is_root_or_may_become_it() -> None:
    pods = [s["spec"]["template"]["spec"] for s in of_kind("StatefulSet").values()]
    for pod in (*pods, *(d["spec"] for d in documents(EXECUTORS / "executor-pod.yaml"))):
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            tight = container["securityContext"]
            assert tight["allowPrivilegeEscalation"] is False
            assert tight["capabilities"] == {"drop": ["ALL"]}


def test_the_secrets_that_pods_name_are_those_of_the_example() -> None:
    made = of_kind("Secret")
    for stateful in of_kind("StatefulSet").values():
        pod = stateful["spec"]["template"]["spec"]
        named = [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
        assert set(named) <= made.keys()
        (script,) = pod["initContainers"][0]["args"]
        for file in re.findall(r"/secrets/tls/(\S+)", script):
            assert file in made["holdfast-tls"]["stringData"]


def put_together(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["kubectl", "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = [d for d in yaml.safe_load_all(done.stdout) if d]
    for document in made:
        kubernetes_validate.validate(document, "1.30", strict=True)
    return made


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_puts_them_together() -> None:
    (config,) = [d for d in put_together(KUBERNETES) if d["kind"] == "ConfigMap"]
    assert {"netmon.yaml", "netmon.py"} == config["data"].keys()


# -- executors in pods -----------------------------------------------------------------------------------------------


def test_the_driver_of_each_host_is_where_its_executors_look_for_it(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, EXECUTORS, EXECUTORS)
    Catalog(deployment.load_app().diagram(), deployment)
    services = of_kind("Service", EXECUTORS)
    drivers = {host.name: dict(host.spark) for host in deployment.hosts if host.master is not None}
    assert {f"holdfast-{name}-driver" for name in drivers} == services.keys()
    for name, settings in drivers.items():
        service = services[f"holdfast-{name}-driver"]
        assert settings["spark.driver.host"] == f"holdfast-{name}-driver.holdfast.svc"
        assert settings["spark.kubernetes.driver.pod.name"] == f"holdfast-{name}-0"
        ports = {p["name"]: str(p["port"]) for p in service["spec"]["ports"]}
        names = {"driver": "spark.driver.port", "blocks": "spark.driver.blockManager.port",
                 "streams": "spark.holdfast.port"}  # fmt: skip
        assert ports == {port: settings[key] for port, key in names.items()}
        pod = of_kind("StatefulSet")[f"holdfast-{name}"]["spec"]["template"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert settings["spark.kubernetes.container.image"] == pod["spec"]["containers"][0]["image"]
        mounted = {m["name"]: m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
        assert settings["spark.kubernetes.executor.podTemplateFile"] == f"{mounted['config']}/executor-pod.yaml"
        # Where it serves its streams: not on loopback, and so with TLS.
        given = {**settings, "spark.holdfast.certificate": "c.pem", "spark.holdfast.key": "k.pem"}
        access, advertised = serving(given, tmp_path)
        assert (access.host, access.port, advertised) == ("0.0.0.0", 7500, settings["spark.driver.host"])
        assert access.certificate is not None


def test_hosts_let_executors_in_and_drivers_may_start_them() -> None:
    (policy,) = of_kind("NetworkPolicy").values()
    (pod,) = documents(EXECUTORS / "executor-pod.yaml")
    allowed = [f["podSelector"]["matchLabels"] for f in policy["spec"]["ingress"][0]["from"] if "podSelector" in f]
    assert pod["metadata"]["labels"] in allowed
    (account,), (role,) = of_kind("ServiceAccount", EXECUTORS), of_kind("Role", EXECUTORS).values()
    (binding,) = of_kind("RoleBinding", EXECUTORS).values()
    assert [s["name"] for s in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    verbs = {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}
    assert verbs.keys() == {"pods", "configmaps"}
    assert all({"create", "get", "list", "watch", "delete", "deletecollection"} <= v for v in verbs.values())


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_the_hosts_with_a_driver_have_its_account_and_the_others_none() -> None:
    made = put_together(EXECUTORS)
    pods = {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in made if d["kind"] == "StatefulSet"}
    found = {n: (p.get("serviceAccountName"), p["automountServiceAccountToken"]) for n, p in pods.items()}
    driver = ("holdfast-driver", True)
    assert found == {"holdfast-src": (None, False), "holdfast-a": driver, "holdfast-b": driver}
    (config,) = [d for d in made if d["kind"] == "ConfigMap"]
    assert {"netmon.yaml", "netmon.py", "executor-pod.yaml"} == config["data"].keys()
    assert config["data"]["netmon.yaml"] == (EXECUTORS / "netmon.yaml").read_text()


# -- the image -------------------------------------------------------------------------------------------------------


def test_the_image_is_not_root_and_asks_after_its_health() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert all(user.split(":")[0].isdigit() and user != "0" for user in users)
    assert any(line.startswith("HEALTHCHECK") and "healthcheck.py" in line for line in lines)
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            for source in [word for word in line.split()[1:-1] if not word.startswith("--")]:
                assert (DEPLOY.parent / source).exists(), line


@pytest.mark.parametrize("script", [DEPLOY / "entrypoint.sh"], ids=lambda p: p.name)
def test_the_entrypoint_starts_an_executor_as_spark_says_it(tmp_path: Path, script: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    said = {
        "JAVA_HOME": str(tmp_path), "SPARK_HOME": "/spark", "SPARK_EXECUTOR_MEMORY": "1g", "SPARK_DRIVER_URL": "d",
        "SPARK_EXECUTOR_ID": "7", "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1", "SPARK_EXECUTOR_POD_NAME": "pod", "SPARK_RESOURCE_PROFILE_ID": "3",
        **{f"SPARK_JAVA_OPT_{n}": f"-Dn={n} x" for n in range(12)},
    }  # fmt: skip
    done = subprocess.run(["bash", str(script), "executor"], env={"PATH": os.environ["PATH"], **said}, cwd=tmp_path,
                          capture_output=True, text=True, check=True)  # fmt: skip
    words = done.stdout.splitlines()
    assert words[:12] == [f"-Dn={n} x" for n in range(12)]
    assert words[12:14] == ["-Xms1g", "-Xmx1g"]
    at = words.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    pairs = dict(zip(words[at + 1 :: 2], words[at + 2 :: 2], strict=True))
    assert pairs == {
        "--driver-url": "d", "--executor-id": "7", "--cores": "2", "--app-id": "app", "--hostname": "10.0.0.1",
        "--resourceProfileId": "3", "--podName": "pod",
    }  # fmt: skip
    assert words[words.index("-cp") + 1] == f"/spark/conf:/spark/jars/*:{tmp_path}"
    more = {"SPARK_CONF_DIR": "/opt/spark/conf", "HADOOP_CONF_DIR": "/hadoop", "SPARK_CLASSPATH": "/mine/*",
            "SPARK_EXTRA_CLASSPATH": "/extra/*", "SPARK_DIST_CLASSPATH": "/dist/*"}  # fmt: skip
    done = subprocess.run(["bash", str(script), "executor"], env={"PATH": os.environ["PATH"], **said, **more},
                          cwd=tmp_path, capture_output=True, text=True, check=True)  # fmt: skip
    words = done.stdout.splitlines()
    in_order = f"/opt/spark/conf:/hadoop:/mine/*:/spark/jars/*:/extra/*:{tmp_path}:/dist/*"
    assert words[words.index("-cp") + 1] == in_order


def test_spark_has_that_class() -> None:
    import pyspark

    assert list(Path(pyspark.__file__).parent.glob("jars/spark-kubernetes_*.jar"))


@pytest.mark.parametrize(("answer", "code"), [(200, 0), (503, 1), (None, 1)])
def test_health_is_what_the_host_says(tmp_path: Path, answer: int | None, code: int) -> None:
    class Host(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer if self.path == "/healthz" and answer is not None else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    if answer is None:
        server.shutdown()
        server.server_close()
    (tmp_path / "d.yaml").write_text(f'app: x.py\nhosts: {{a: {{address: "127.0.0.1:{port}", root: a}}}}\n')
    environment = {**os.environ, "HOLDFAST_DEPLOYMENT": str(tmp_path / "d.yaml"), "HOLDFAST_HOST": "a"}
    try:
        done = subprocess.run([sys.executable, str(DEPLOY / "healthcheck.py")], env=environment, check=False,
                              capture_output=True)  # fmt: skip
        assert done.returncode == code
    finally:
        if answer is not None:
            server.shutdown()
            server.server_close()


# -- compose ---------------------------------------------------------------------------------------------------------


def test_what_compose_mounts_is_there_and_its_deployment_is_understood() -> None:
    said = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    services = said["services"]
    assert {"kafka", "postgres", "prometheus", "grafana", "holdfast"} <= services.keys()
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in said["volumes"] or (COMPOSE / source).exists(), volume
    deployment = load_deployment(COMPOSE / "shops.yaml")
    (host,) = deployment.hosts
    assert host.address == f"{services['holdfast']['hostname']}:7401"
    assert host.mesh
    (scraped,) = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [host.address]}]
    assert scraped["authorization"]["credentials_file"] == str(deployment.view_token_file)
    diagram = deployment.load_app().diagram()
    assert isinstance(diagram, Diagram)
    Catalog(diagram, deployment)


def _compose() -> bool:
    return shutil.which("docker") is not None and not subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False
    ).returncode  # fmt: skip


@pytest.mark.skipif(not _compose(), reason="needs docker compose")
def test_compose_understands_its_file() -> None:
    done = subprocess.run(["docker", "compose", "-f", str(COMPOSE / "compose.yaml"), "config", "--quiet"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
