"""A real MCP server as a source of tools, in both eras of its protocol: over Streamable HTTP, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import structlog

from sessions.tools.mcp_server import McpServer, ReconnectTiming
from sessions.tools.tool_registry import Approval, ToolFailed, ToolLost, ToolRegistry
from tests.sessions.chat_driver import eventually
from tests.sessions.tools.mcp_servers import TEMPO, Era, Shop, box_at, options_of
from tests.sessions.tools.tool_calls import Watcher, box_of, call_of

SLOW = ReconnectTiming(first=0.02, longest=0.3, apart=1.0)
"""Leaves time to call a server that is not known to be gone."""


def port_of(url: str) -> int:
    return int(url.split(":")[2].partition("/")[0])


@pytest.fixture(params=["handshake", "modern"])
def era(request: pytest.FixtureRequest) -> Era:
    which: Era = request.param
    return which


@pytest.fixture
async def shop(era: Era) -> Shop:
    return Shop(era)


@pytest.fixture
async def box(shop: Shop) -> AsyncIterator[ToolRegistry]:
    """All tools of the shop."""
    async with shop.served() as url, box_at(options_of(url)) as running:
        yield running


async def test_the_tools_of_a_server_are_offered(box: ToolRegistry) -> None:
    """What is not annotated as harmless asks its user."""
    tools = {tool.name: tool for tool in box.offered()}
    assert list(tools) == sorted(tools)
    assert tools["price"].description == "Say what something costs."
    assert json.loads(tools["price"].parameters)["required"] == ["item"]
    assert {name: (tools[name].approval, tools[name].idempotent) for name in ("price", "order", "wait")} == {
        "price": (Approval.NEVER, True),
        "order": (Approval.ALWAYS, True),
        "wait": (Approval.ALWAYS, False),
    }


async def test_a_call_gives_the_text_of_its_result_or_of_its_failure(box: ToolRegistry) -> None:
    assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"
    assert await box.run("price", {"item": "tea", "pieces": 2}, call_of()) == "6"  # structured, too
    assert (await box.run("picture", {}, call_of())).splitlines()[:2] == [
        "Here it is:",
        "[An image, image/png, 30 bytes. It can't be shown here.]",
    ]
    with pytest.raises(ToolFailed, match="The shelf is empty"):
        await box.run("fail", {}, call_of())
    with pytest.raises(ToolFailed, match="item"):
        await box.run("price", {"thing": 3}, call_of())


async def test_progress_is_heard(box: ToolRegistry, shop: Shop) -> None:
    watcher = Watcher()
    running = asyncio.create_task(box.run("count", {"to": 3}, call_of(progress=watcher)))
    seen = await watcher.seen.get()
    while seen.done < 3:
        seen = await watcher.seen.get()
    assert (seen.total, seen.message) == (3, "number 3")
    shop.release.set()
    assert await running == "counted to 3"


async def test_a_cancelled_call_is_cancelled_at_the_server(box: ToolRegistry, shop: Shop) -> None:
    running = asyncio.create_task(box.run("wait", {"name": "alice"}, call_of()))
    assert await shop.waiting.get() == "alice"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await shop.left.get() == "alice"


async def test_a_server_learns_whose_call_it_is_where_the_operator_wants_that(shop: Shop) -> None:
    """Each call has a key of its own, and each request the operator's headers."""
    secret = {"Authorization": "Bearer secret"}
    async with shop.served() as url:
        servers = [
            McpServer(options_of(url), secret, timing=TEMPO),
            McpServer(options_of(url, identify=True, prefix="my_"), secret, timing=TEMPO),
        ]
        box = ToolRegistry(servers)
        async with box.running():
            assert json.loads(await box.run("who", {}, call_of(call_id="c7"))) == {"midstream/call": "c7"}
            assert json.loads(await box.run("my_who", {}, call_of("digest", "c7"))) == {
                "midstream/call": "c7",
                "midstream/conversation": "talk",
                "midstream/owner": "digest",
            }
    assert {headers.get("authorization") for headers in shop.heard} == {"Bearer secret"}


async def test_a_change_of_the_list_is_heard_of(box: ToolRegistry) -> None:
    before = box.offered()
    await box.run("extend", {"name": "again"}, call_of())
    await eventually(lambda: box.tool("again") is not None)
    assert [tool for tool in box.offered() if tool.name != "again"] == list(before)
    assert await box.run("again", {"item": "tea"}, call_of()) == "tea is ordered"


async def test_only_tools_that_are_named_are_offered_and_none_twice(shop: Shop) -> None:
    def order(item: str) -> str:
        return "from here"

    async with (
        shop.served() as first,
        Shop(shop.era).served() as second,
        box_at(
            options_of(first, prefix="a_", tools=("order", "sing")),
            options_of(second, name="other", tools=("order",)),
        ) as box,
    ):
        assert [tool.name for tool in box.offered()] == ["a_order", "order"]
        assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"
        with pytest.raises(ToolFailed, match="no tool 'price'"):
            await box.run("price", {"item": "tea"}, call_of())
        both = ToolRegistry([*box_of(order)._sources, *box._sources])
        with structlog.testing.capture_logs() as lines:
            assert [tool.name for tool in both.offered()] == ["order", "a_order"]
        assert [line["tool"] for line in lines] == ["order"]
        assert await both.run("order", {"item": "tea"}, call_of()) == "from here"


async def test_a_server_may_come_late_go_away_and_come_back(shop: Shop) -> None:
    async with shop.served() as url:
        pass
    async with box_at(options_of(url)) as box:
        assert box.offered() == ()
        async with Shop(shop.era).served(port_of(url)):
            await eventually(lambda: box.tool("order") is not None)
            assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"
        with pytest.raises(ToolFailed, match=r"not run|no tool") as failure:  # it may be noticed before
            await box.run("order", {"item": "tea"}, call_of())
        assert not isinstance(failure.value, ToolLost)
        await eventually(lambda: box.offered() == ())
        async with Shop(shop.era).served(port_of(url)):
            await eventually(lambda: box.tool("order") is not None)
            assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"


async def test_a_call_whose_server_dies_is_lost(shop: Shop) -> None:
    async with AsyncExitStack() as stack:
        async with shop.served() as url:
            box = await stack.enter_async_context(box_at(options_of(url)))
            running = asyncio.create_task(box.run("wait", {"name": "alice"}, call_of()))
            await shop.waiting.get()
        with pytest.raises(ToolLost, match=r"gave no answer|server broke"):
            await running


async def test_a_session_that_the_server_forgot_is_opened_anew() -> None:
    """A server that restarts between two calls knows no earlier session; the call was not run, and the next one is."""
    shop = Shop("handshake")  # the other era has no sessions
    async with AsyncExitStack() as stack:
        async with shop.served() as url:
            box = await stack.enter_async_context(box_at(options_of(url), timing=SLOW))
        async with Shop(shop.era).served(port_of(url)):
            with pytest.raises(ToolFailed, match=r"has restarted\. The tool was not run"):
                await box.run("order", {"item": "tea"}, call_of())
            await eventually(lambda: box.tool("order") is None)
            await eventually(lambda: box.tool("order") is not None)
            assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"
