"""A session on a cluster is not open to whoever reaches its ports (X1). No Spark is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.model.errors import UsageError
from holdfast.spark.cluster_security import secured, with_secret

ALL = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}


@pytest.fixture(autouse=True)
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_on_this_machine_nothing_is_needed() -> None:
    for master in (
        "local[2]",
        "local[*,4]",
        "local-cluster[2,1,1024]",
        "spark://127.0.0.1:7077",
        "spark://localhost:1",
    ):
        assert secured(master, {}) == {}


def test_where_spark_makes_its_own_secret_it_asks_for_it_and_encrypts() -> None:
    for master in ("yarn", "k8s://https://10.0.0.5:6443"):
        assert secured(master, {}) == ALL
        assert secured(master, {"spark.network.crypto.enabled": "false"}) == {
            key: value for key, value in ALL.items() if key != "spark.network.crypto.enabled"
        }


def test_a_cluster_that_others_can_reach_needs_its_secret_or_its_owners_word() -> None:
    """It was joined without a word: whoever reached it could run code in executors and read what travelled."""
    master = "spark://10.0.0.5:7077,127.0.0.1:7077"
    with pytest.raises(UsageError, match=r"reached over a network: .* got none; set spark.authenticate to false only"):
        secured(master, {})
    assert secured(master, {"spark.authenticate.secret": "s"}) == ALL
    assert secured(master, with_secret("s")) == {}
    assert secured(master, {"spark.authenticate": "false"}) == {}


def test_what_the_owner_of_spark_has_set_for_all_sessions_counts(defaults: Path) -> None:
    defaults.write_text("# ours\nspark.authenticate true\nspark.authenticate.secret=abc\n")
    assert secured("spark://10.0.0.5:7077", {}) == {k: v for k, v in ALL.items() if k != "spark.authenticate"}
