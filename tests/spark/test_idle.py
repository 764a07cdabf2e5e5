"""A query that has nothing to read waits in its reader, and nobody waits for it. No Spark here."""

from __future__ import annotations

import pytest

from holdfast.spark import idle
from holdfast.spark.idle import IdleWait


class Looks:
    """Whether there is news: at the n-th look, or never."""

    def __init__(self, news_at: int | None = None) -> None:
        self.count, self._news_at = 0, news_at

    def __call__(self) -> bool:
        self.count += 1
        return self.count == self._news_at


def test_the_first_answers_behind_a_batch_come_at_once_and_later_ones_with_the_news():
    """Batches without tuples, by which Spark releases windows, follow only after an answer."""
    wait = IdleWait()
    for start in ({"until_us": 1}, {"until_us": 2}):
        prompt = Looks()
        for _ in range(3):
            wait.until(start, prompt)
        assert prompt.count == 0
        for _ in range(2):
            later = Looks(news_at=3)
            wait.until(dict(start), later)
            assert later.count == 3


def test_an_answer_comes_also_without_news(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle, "ANSWER_US", 20_000)
    wait, never = IdleWait(), Looks()
    for _ in range(4):
        wait.until({}, never)
    assert 1 <= never.count <= 10
