"""HTTP requests count as frames do, and whoever had most is a crowd while there are guests."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from connections import loop_scheduler
from connections.loop_scheduler import WINDOW, FairLoopScheduler, FairShareMiddleware, LightClients
from connections.middleware import AllowedAddresses, set_client_address
from sessions.limits.slots import is_heavy_caller, with_heaviness

RULE = AllowedAddresses(allowed=(), trusted=())
CROWD = [f"10.0.0.{number}" for number in range(20)]


class RecordingApp:
    """An application that notes whether a request is of a crowd, and whether others begin less meanwhile."""

    def __init__(self, light_clients: LightClients) -> None:
        self.light_clients = light_clients
        self.request = (False, -1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = (is_heavy_caller(), self.light_clients.requests)


async def seen_by_app(
    light_clients: LightClients, address: str, *, kind: str = "http", path: str = "/v1/models"
) -> tuple[bool, int]:
    """What the application sees of a request from an address."""
    seen = RecordingApp(light_clients)
    scope: Scope = {"type": kind, "path": path, "state": {}}
    set_client_address(scope, RULE.client(address, []))
    await FairShareMiddleware(seen, light_clients)(scope, None, None)  # type: ignore[arg-type]
    return seen.request


async def heavy_flags(light_clients: LightClients) -> list[bool]:
    """Whether each of many requests was of a crowd."""
    return [(await seen_by_app(light_clients, CROWD[number % len(CROWD)]))[0] for number in range(WINDOW)]


async def test_those_who_ask_all_the_time_are_a_crowd_beside_one_who_asks_now_and_then() -> None:
    light_clients = LightClients()
    await heavy_flags(light_clients)
    assert await seen_by_app(light_clients, "10.0.1.1") == (False, 1)
    assert all((await heavy_flags(light_clients))[:100])
    assert light_clients.requests == 0


async def test_where_nobody_asks_but_they_there_is_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    light_clients = LightClients()
    await heavy_flags(light_clients)
    monkeypatch.setattr(loop_scheduler, "LIGHT_PRIORITY_S", 0.0)
    assert not any(await heavy_flags(light_clients))


async def test_who_opens_files_and_connects_is_still_a_guest() -> None:
    light_clients = LightClients()
    await heavy_flags(light_clients)
    for _ in range(100):
        assert await seen_by_app(light_clients, "10.0.1.1", path="/static/app.js") == (False, 0)
    assert await seen_by_app(light_clients, "10.0.1.1", kind="websocket") == (False, 0)
    assert await seen_by_app(light_clients, "10.0.1.1") == (False, 1)


async def test_it_is_asked_anew_while_a_connection_lasts() -> None:
    """Who was a guest when it came is none once it floods; a task that began before sees that."""
    light_clients, goes_on = LightClients(), asyncio.Event()

    async def later() -> bool:
        await goes_on.wait()
        return is_heavy_caller()

    tasks: list[asyncio.Task[bool]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert not is_heavy_caller()
        tasks.append(asyncio.create_task(later()))

    scope: Scope = {"type": "websocket", "path": "/v1/ws", "state": {}}
    set_client_address(scope, RULE.client("10.0.0.1", []))
    await FairShareMiddleware(app, light_clients)(scope, None, None)  # type: ignore[arg-type]
    await heavy_flags(light_clients)
    await seen_by_app(light_clients, "10.0.1.1")
    goes_on.set()
    assert await tasks[0]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_behind_a_proxy_that_is_not_known_nobody_is_a_crowd(address: str) -> None:
    light_clients = LightClients()
    await seen_by_app(light_clients, "10.0.1.1")
    found = [await seen_by_app(light_clients, address) for _ in range(100)]
    assert set(found) == {(False, 0)}


async def test_what_waits_for_its_turn_is_not_begun_as_work_of_whoever_came_first() -> None:
    turns, seen = FairLoopScheduler(at_once=1), asyncio.get_running_loop().create_future()
    with with_heaviness(lambda: True):
        turns.queue("crowd", lambda: None)
    turns.queue("bob", lambda: seen.set_result(is_heavy_caller()))
    assert not await seen
