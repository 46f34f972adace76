"""HTTP requests count as frames do: those of a crowd are known as such, and nobody else's are."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from connections.gate.client_address import AddressRule, note_client
from connections.limits.loop_turns import Guests
from connections.limits.weighing import Weighing
from sessions.recent import LATELY
from sessions.store.redis.asker import is_of_a_crowd, note_crowd

RULE = AddressRule(allowed=(), trusted=())


class Seen:
    """An application that notes whether a request is of a crowd, and whether others begin less meanwhile."""

    def __init__(self, guests: Guests) -> None:
        self.guests = guests
        self.requests: list[tuple[bool, int]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append((is_of_a_crowd(), self.guests.requests))


async def asked(guests: Guests, address: str, kind: str = "http") -> tuple[bool, int]:
    """What the application sees of a request from an address."""
    note_crowd(is_crowd=False)
    seen = Seen(guests)
    scope: Scope = {"type": kind, "state": {}}
    note_client(scope, RULE.client(address, []))
    await Weighing(seen, guests)(scope, None, None)  # type: ignore[arg-type]
    return seen.requests[0]


async def test_those_who_ask_all_the_time_are_a_crowd_and_who_asks_now_and_then_is_not() -> None:
    guests = Guests()
    found = [await asked(guests, f"10.0.0.{number % 5}") for number in range(LATELY)]
    assert all(is_crowd for is_crowd, _ in found[50:])
    assert await asked(guests, "10.0.1.1") == (False, 1)
    assert guests.requests == 0


async def test_a_handshake_is_weighed_but_does_not_hold_others_up_while_it_lasts() -> None:
    guests = Guests()
    assert await asked(guests, "10.0.0.1", "websocket") == (False, 0)
    assert await asked(guests, "10.0.0.2", "websocket") == (False, 0)
    assert await asked(guests, "10.0.0.1", "websocket") == (True, 0)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_behind_a_proxy_that_is_not_known_nobody_is_a_crowd(address: str) -> None:
    guests = Guests()
    found = [await asked(guests, address) for _ in range(100)]
    assert set(found) == {(False, 0)}
