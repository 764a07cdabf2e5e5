"""Places for connections: silence keeps nobody out, and room is kept for operators and peers (X6)."""

from __future__ import annotations

import pytest

from holdfast.inputs.places import ADDRESS_MAX, CONNECTIONS_MAX, KEPT, STRANGERS_MAX, TOKEN_MAX, Crowded, Place, Places


class Crowd:
    """Connections that note when they are ended."""

    def __init__(self) -> None:
        self.places = Places()
        self.ended: list[str] = []

    def come(self, address: str, name: str = "") -> Place:
        return self.places.enter(address, lambda: self.ended.append(name))

    def known(self, count: int, token: str, *, kept: bool = False) -> list[Place]:
        places = []
        for i in range(count):
            place = self.come(f"10.1.{i // 250}.{i % 250}")
            place.known(token, kept=kept)
            places.append(place)
        return places


def test_a_flood_of_silent_connections_from_one_address_evicts_itself() -> None:
    crowd = Crowd()
    crowd.come("10.0.0.9", "other")
    for i in range(1000):
        crowd.come("10.0.0.1", f"flood{i}")
    assert crowd.ended == [f"flood{i}" for i in range(1000 - ADDRESS_MAX)]
    crowd.come("10.0.0.2", "late").known("operator", kept=True)
    assert "late" not in crowd.ended


def test_strangers_from_many_addresses_leave_a_place_for_the_newest() -> None:
    crowd = Crowd()
    for i in range(500):
        crowd.come(f"10.{i // 250}.{i % 250}.1", str(i))
    assert crowd.ended == [str(i) for i in range(500 - STRANGERS_MAX)]


def test_a_token_has_a_share_and_all_but_operators_and_peers_leave_room() -> None:
    crowd = Crowd()
    crowd.known(TOKEN_MAX, "viewer")
    with pytest.raises(Crowded, match="one token may hold"):
        crowd.come("10.0.0.1").known("viewer")
    crowd.known(CONNECTIONS_MAX - KEPT - TOKEN_MAX, "partner")
    with pytest.raises(Crowded, match="all but operators and peers"):
        crowd.come("10.0.0.1").known("other")
    crowd.known(KEPT, "operator", kept=True)
    with pytest.raises(Crowded, match="all 256"):
        crowd.come("10.0.0.1").known("operator", kept=True)


def test_a_place_that_is_left_is_free_again_and_left_once() -> None:
    crowd = Crowd()
    places = crowd.known(TOKEN_MAX, "viewer")
    for place in (*places, *places):
        place.leave()
    crowd.known(TOKEN_MAX, "viewer")
    with pytest.raises(Crowded):
        crowd.known(1, "viewer")


def test_another_token_on_the_same_connection_counts_for_that_one() -> None:
    crowd = Crowd()
    places = crowd.known(TOKEN_MAX, "viewer")
    places[0].known("operator", kept=True)
    crowd.known(1, "viewer")
    with pytest.raises(Crowded):
        crowd.known(1, "viewer")
