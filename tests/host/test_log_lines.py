"""A host's log as text or JSON lines, with node, replica and bucket as fields."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app as cli
from holdfast.host.log_lines import VARIABLE, JsonLines, ReplicaLog, set_up_logging
from holdfast.model.errors import UsageError


def lines() -> tuple[ReplicaLog, io.StringIO]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("holdfast.test")
    logger.addHandler(handler)
    buckets = iter([4711, None])
    return ReplicaLog(logger, "counts@a", lambda: next(buckets)), text


def test_a_line_is_an_object_with_node_replica_and_bucket() -> None:
    log, text = lines()
    log.warning("input before %s is gone", "noon")
    log.info("100%% of %d", 7)
    first, second = (json.loads(line) for line in text.getvalue().splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "WARNING", "logger": "holdfast.test", "message": "counts@a: input before noon is gone",
        "node": "counts", "replica": "counts@a", "bucket": 4711,
    }  # fmt: skip
    assert second["message"] == "counts@a: 100% of 7"
    assert "bucket" not in second, "what is not known is left out"


def test_a_traceback_and_a_line_break_stay_in_their_line() -> None:
    log, text = lines()
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        log.error("it failed: %s", error, exc_info=True)
    (line,) = text.getvalue().splitlines()
    said = json.loads(line)
    assert said["message"] == "counts@a: it failed: two\nlines"
    assert "ValueError: two\nlines" in said["error"]


def test_the_text_says_what_it_always_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ReplicaLog(logging.getLogger("holdfast.host.test"), "counts@a").info("STABLE after %s", "Tick")
    (record,) = caplog.records
    assert record.getMessage() == "counts@a: STABLE after Tick"
    assert (record.node, record.replica) == ("counts", "counts@a")  # type: ignore[attr-defined]


def test_a_format_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(UsageError, match="must be one of text, json; got 'xml'"):
        set_up_logging()
    monkeypatch.delenv(VARIABLE)
    for verb in (["up", "d.yaml"], ["host", "d.yaml", "a"]):
        refused = CliRunner().invoke(cli, [*verb, "--log-format", "xml"])
        assert refused.exit_code == 1
        assert "must be one of text, json" in refused.stderr
    assert VARIABLE not in os.environ


def test_a_process_that_is_a_host_writes_what_the_environment_says() -> None:
    program = (
        "import logging; from holdfast.host.log_lines import *; set_up_logging(); "
        "ReplicaLog(logging.getLogger('holdfast.host'), 'n@a', lambda: 3).info('set up')"
    )
    said = {}
    for format in ("text", "json"):
        ran = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, VARIABLE: format}, capture_output=True, text=True
        )
        said[format] = ran.stderr
    assert said["text"].endswith(" INFO n@a: set up\n")
    assert json.loads(said["json"])["bucket"] == 3


def test_a_name_that_is_no_text_does_not_take_its_line_with_it() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "no file %s", ("caf\udce9",), None)
    assert json.loads(JsonLines().format(record))["message"] == "no file caf\udce9"
