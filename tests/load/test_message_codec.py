"""What load managers send each other: every message there and back, and nothing else (X4)."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.load.message_codec import HOLD_US_MAX, MESSAGE_BYTES_MAX, decode_message, encode_message
from holdfast.model.errors import PeerError
from holdfast.protocol.load import messages
from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.messages import Message
from holdfast.protocol.load.usage import Task, Usage

ids = st.from_regex(r"[a-z0-9][a-z0-9._:#-]{0,20}", fullmatch=True)
amounts = st.floats(0, 1e9, allow_nan=False)
periods = st.integers(-1, 10_000)
tasks = st.builds(Task, ids, st.builds(Usage, amounts, amounts, amounts), st.just("counts"), amounts)
entries = st.tuples(st.builds(Entry, ids, periods, ids, ids, ids, amounts, amounts, st.integers(-(2**40), 2**40)))
FIELDS = {
    "offer_id": ids, "contract_id": ids, "lease_id": ids, "price": amounts, "units": amounts, "period": periods,
    "have": periods, "void": st.booleans(), "hold_us": st.integers(0, HOLD_US_MAX), "tasks": st.tuples(tasks, tasks),
    "task_ids": st.tuples(ids, ids), "leases": st.tuples(st.tuples(ids, ids)), "entries": entries,
}  # fmt: skip


def test_there_is_a_form_for_every_message() -> None:
    assert len(get_args(Message)) == 14


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    said = kind(**{name: data.draw(FIELDS[name]) for name in kind.__dataclass_fields__})
    assert decode_message(encode_message("anna", "ben", said)) == ("anna", "ben", said)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"version": None}, {"sender": "../x"}, {"sender": "A"}, {"more": 1},
        {"message": {"kind": "order"}}, {"message": {"kind": "reject"}}, {"message": {"kind": "reject", "offer_id": 3}},
        {"message": {"kind": "reject", "offer_id": "a", "code": "import os"}},
        {"message": {"kind": "counter", "offer_id": "a", "price": -1.0, "task_ids": []}},
        {"message": {"kind": "accept", "offer_id": "a", "task_ids": ["a"] * 2000}},
        {"message": {"kind": "offer", "offer_id": "a", "contract_id": "c", "price": 1, "tasks": [], "hold_us": 2**60}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_in_the_schema_is_refused_with_one_sentence(change: dict[str, object]) -> None:
    good = json.loads(encode_message("anna", "ben", messages.Reject("a:1")))
    with pytest.raises(PeerError, match="a message must follow version 1 of the schema"):
        decode_message(json.dumps({**good, **change}).encode())


def test_a_message_without_end_is_refused_before_it_is_read() -> None:
    with pytest.raises(PeerError, match=f"{MESSAGE_BYTES_MAX} bytes at most"):
        decode_message(b" " * (MESSAGE_BYTES_MAX + 1))
