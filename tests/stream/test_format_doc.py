"""The sample in docs/log-format.md is read by the code that reads logs."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from holdfast.model.schema import parse_schema, stored_schema
from holdfast.stream.frame import FILE_HEADER_SIZE, FileHeader, decode_file_header
from holdfast.stream.segment import Window, read_body, walk

DOCUMENT = Path(__file__).parents[2] / "docs" / "log-format.md"


def sample() -> bytes:
    """The dump as bytes; a line with an asterisk repeats the one before up to the next address."""
    data, repeat = b"", False
    for line in DOCUMENT.read_text().split("```")[3].strip().splitlines():
        if line == "*":
            repeat = True
            continue
        address = int(line[:8], 16)
        while repeat and len(data) < address:
            data += data[-16:]
        assert len(data) == address
        repeat = False
        data += bytes.fromhex("".join(re.findall(r"\b[0-9a-f]{2}\b", line[8:58])))
    return data


def test_the_documented_sample_decodes_to_what_it_says(tmp_path: Path) -> None:
    data = sample()
    assert decode_file_header(data[:FILE_HEADER_SIZE], "") == FileHeader(1, 1_700_000_000_000_000, 0, bytes(range(16)))
    path = tmp_path / "sample.seg"
    path.write_bytes(data)
    with path.open("rb") as file:
        window = Window(file.fileno(), path, len(data))
        begin, unit = walk(window, FILE_HEADER_SIZE, bodies=True)
        assert (begin.seq, unit.seq, unit.commit.tokens) == (1, 2, {"p": 1})
        body = read_body(window, unit.frames[0])
    batch = pa.ipc.read_record_batch(pa.py_buffer(body), stored_schema(parse_schema("value bigint")))
    assert batch.column("value").to_pylist() == [7, 8]
    assert batch.column("stime").cast(pa.int64()).to_pylist() == [1_700_000_000_250_000] * 2
