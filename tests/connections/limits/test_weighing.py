"""HTTP requests count as frames do, and whoever had most is a crowd while there are guests."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from connections.gate.client_address import AddressRule, note_client
from connections.limits import loop_turns
from connections.limits.loop_turns import Guests, LoopTurns
from connections.limits.weighing import Weighing
from sessions.recent import LATELY
from sessions.store.redis.asker import crowding, is_of_a_crowd

RULE = AddressRule(allowed=(), trusted=())
CROWD = [f"10.0.0.{number}" for number in range(20)]


class Seen:
    """An application that notes whether a request is of a crowd, and whether others begin less meanwhile."""

    def __init__(self, guests: Guests) -> None:
        self.guests = guests
        self.request = (False, -1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = (is_of_a_crowd(), self.guests.requests)


async def asked(
    guests: Guests, address: str, *, kind: str = "http", path: str = "/v1/models"
) -> tuple[bool, int]:
    """What the application sees of a request from an address."""
    seen = Seen(guests)
    scope: Scope = {"type": kind, "path": path, "state": {}}
    note_client(scope, RULE.client(address, []))
    await Weighing(seen, guests)(scope, None, None)  # type: ignore[arg-type]
    return seen.request


async def crowd(guests: Guests) -> list[bool]:
    """Whether each of many requests was of a crowd."""
    return [(await asked(guests, CROWD[number % len(CROWD)]))[0] for number in range(LATELY)]


async def test_those_who_ask_all_the_time_are_a_crowd_beside_one_who_asks_now_and_then() -> None:
    guests = Guests()
    await crowd(guests)
    assert await asked(guests, "10.0.1.1") == (False, 1)
    assert all((await crowd(guests))[:100])
    assert guests.requests == 0


async def test_where_nobody_asks_but_they_there_is_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = Guests()
    await crowd(guests)
    monkeypatch.setattr(loop_turns, "GUESTS_S", 0.0)
    assert not any(await crowd(guests))


async def test_who_opens_files_and_connects_is_still_a_guest() -> None:
    guests = Guests()
    await crowd(guests)
    for _ in range(100):
        assert await asked(guests, "10.0.1.1", path="/static/app.js") == (False, 0)
    assert await asked(guests, "10.0.1.1", kind="websocket") == (False, 0)
    assert await asked(guests, "10.0.1.1") == (False, 1)


async def test_it_is_asked_anew_while_a_connection_lasts() -> None:
    """Who was a guest when it came is none once it floods; a task that began before sees that."""
    guests, goes_on = Guests(), asyncio.Event()

    async def later() -> bool:
        await goes_on.wait()
        return is_of_a_crowd()

    tasks: list[asyncio.Task[bool]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert not is_of_a_crowd()
        tasks.append(asyncio.create_task(later()))

    scope: Scope = {"type": "websocket", "path": "/v1/ws", "state": {}}
    note_client(scope, RULE.client("10.0.0.1", []))
    await Weighing(app, guests)(scope, None, None)  # type: ignore[arg-type]
    await crowd(guests)
    await asked(guests, "10.0.1.1")
    goes_on.set()
    assert await tasks[0]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_behind_a_proxy_that_is_not_known_nobody_is_a_crowd(address: str) -> None:
    guests = Guests()
    await asked(guests, "10.0.1.1")
    found = [await asked(guests, address) for _ in range(100)]
    assert set(found) == {(False, 0)}


async def test_what_waits_for_its_turn_is_not_begun_as_work_of_whoever_came_first() -> None:
    turns, seen = LoopTurns(at_once=1), asyncio.get_running_loop().create_future()
    with crowding(lambda: True):
        turns.queue("crowd", lambda: None)
    turns.queue("bob", lambda: seen.set_result(is_of_a_crowd()))
    assert not await seen
