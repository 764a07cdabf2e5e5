"""Whose position a webhook goes on from, and what must not travel in the clear."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from holdfast.model.errors import UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Source, foreach, webhook
from holdfast.stream.frame import crc32c
from holdfast.testing.sinks import _changes
from tests.sinks.test_runner import Receiver, receiver

__all__ = ["receiver"]

SOURCE = Source("totals", parse_schema("n bigint, k bigint, v bigint"))


def sent(url: str, position: str, path: Path | None = None) -> str | None:
    """One run of a hook, up to that position; where it began."""
    sink = webhook(url, position=path)
    try:
        found = sink.resume(SOURCE)
        sink.apply(_changes(0), position)
        return found
    finally:
        sink.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keep_as_before(path: Path, position: str) -> None:
    """As a version kept it that did not know of targets."""
    text = json.dumps({"stream": SOURCE.stream, "position": position, "format": 1}).encode()
    path.write_bytes(text + b"\n%08x\n" % crc32c(text))


def test_two_hooks_of_one_stream_have_a_position_each(here: Path, receiver: tuple[str, type[Receiver]]) -> None:
    """T2: the slower one skipped what the other one had been sent."""
    url, seen = receiver
    hooks = (f"{url}/a", f"{url}/b", f"{url}/b?channel=1")
    assert [sent(hook, f"of {n}") for n, hook in enumerate(hooks)] == [None, None, None]
    assert [sent(hook, "later") for hook in hooks] == ["of 0", "of 1", "of 2"]
    assert len(seen.bodies) == 6


def test_a_password_that_changes_leaves_the_hook_its_position(here: Path, receiver: tuple[str, type[Receiver]]) -> None:
    plain = receiver[0].removeprefix("http://")
    assert sent(f"http://ann:old@{plain}", "one") is None
    assert sent(f"http://ann:new@{plain}#notes", "two") == "one"
    assert not any(b"old" in path.read_bytes() or "old" in path.name for path in here.iterdir())


def test_a_position_of_another_target_is_refused(here: Path, receiver: tuple[str, type[Receiver]]) -> None:
    """T2: rows before it would be missing there."""
    url, _ = receiver
    place = here / "place"
    assert sent(url, "one", place) is None
    with pytest.raises(UsageError, match=rf"place holds the position of {url}; got {url}/b, which lacks the rows"):
        sent(f"{url}/b", "two", place)
    with pytest.raises(UsageError, match=rf"holds the position of {url}; got {url} with another query"):
        sent(f"{url}?channel=b", "two", place)
    with pytest.raises(UsageError, match=rf"holds the position of {url}; got function print"):
        foreach(print, position=place).resume(SOURCE)
    assert sent(url, "two", place) == "one"


def test_a_position_that_is_in_use_is_refused(here: Path, receiver: tuple[str, type[Receiver]]) -> None:
    sink, other = (webhook(receiver[0]) for _ in range(2))
    sink.resume(SOURCE)
    with pytest.raises(UsageError, match=r"another sink keeps its position in .*totals\.webhook-"):
        other.resume(SOURCE)
    sink.close()
    assert other.resume(SOURCE) is None
    other.close()
    function, same = (foreach(lambda changes, position: None, position="place") for _ in range(2))
    function.resume(SOURCE)
    with pytest.raises(UsageError, match=r"another sink keeps its position in .*place"):
        same.resume(SOURCE)
    function.close()


def test_a_position_of_an_earlier_version_is_that_of_the_first_hook_that_comes(
    here: Path, receiver: tuple[str, type[Receiver]], caplog: pytest.LogCaptureFixture
) -> None:
    url, _ = receiver
    earlier = here / "totals.webhook.position"
    keep_as_before(earlier, "before")
    with caplog.at_level(logging.WARNING):
        sink = webhook(f"{url}/a")
        assert sink.resume(SOURCE) == "before"
        sink.close()
    assert f"goes on where {earlier} was" in caplog.text
    assert not earlier.exists(), "nobody else takes it for its own"
    assert sent(f"{url}/b", "one") is None
    assert sent(f"{url}/a", "two") == "before"
    keep_as_before(earlier, "before")
    assert sent(f"{url}/c", "one") is None, "whose it is, nobody knows, where there are others"


def test_a_position_of_an_earlier_version_that_is_named_is_taken_and_says_whose_it_is(
    here: Path, receiver: tuple[str, type[Receiver]]
) -> None:
    url, _ = receiver
    keep_as_before(here / "place", "before")
    sink = webhook(url, position="place")
    assert sink.resume(SOURCE) == "before"
    sink.close()
    with pytest.raises(UsageError, match="holds the position of"):
        webhook(f"{url}/b", position="place").resume(SOURCE)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("http://ann:secret@example.org/hook", "a name and a password"),
        ("http://ann@example.org/hook", "a name and a password"),
        ("http://example.org/hook?channel=a&access_token=secret", "the parameter 'access_token'"),
        ("http://example.org/hook?api-key=secret", "the parameter 'api-key'"),
    ],
)
def test_a_secret_of_the_address_must_not_travel_in_the_clear(url: str, secret: str) -> None:
    with pytest.raises(UsageError, match=rf"^{secret} must not travel in the clear: example\.org needs https$"):
        webhook(url)
    webhook(url.replace("http:", "https:"))
    webhook(url.replace("example.org", "127.0.0.1"))


def test_an_address_without_a_secret_may_be_a_plain_one() -> None:
    for query in ("", "?channel=a", "?author=ann&monkey=b"):
        assert webhook(f"http://example.org/hook{query}").target == "http://example.org/hook"
