"""Where an input begins: nothing that may still come lies before."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.host.intake import Feed
from holdfast.host.mirrored_intake import MirroredIntake
from tests.host.conftest import SECOND, Origin, hosted, linked, until


def test_an_input_whose_tuples_come_out_of_order_begins_at_its_boundary(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    feed = Feed(origin.stream, SECOND)
    assert feed.first_us() is None
    origin.add((5.2, 1), boundary=2)
    assert feed.first_us() == 2 * SECOND, "a tuple at 3 s may follow"

    async def play() -> int | None:
        async with hosted(origin.store) as service, linked(service) as link:
            intake = MirroredIntake(tmp_path / "m", origin.definition, ("p",), SECOND, lambda _: link)
            await until(lambda: intake.first_us() is not None)
            intake.close()
            return intake.first_us()

    assert asyncio.run(play()) == 2 * SECOND
    origin.add((3.0, 2), boundary=9)
    assert feed.first_us() == 3 * SECOND, "what came counts, once nothing older can"
    feed.close()
