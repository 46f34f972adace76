"""A real MCP server as a source of tools, in both eras of its protocol: over Streamable HTTP, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import structlog

from sessions.tools.mcp_server import McpServer, ReconnectTiming
from sessions.tools.tool_registry import (
    Accepted,
    Answer,
    Approval,
    Declined,
    Dismissed,
    ToolFailed,
    ToolLost,
    ToolRegistry,
)
from tests.sessions.chat_driver import eventually
from tests.sessions.tools.mcp_servers import TEMPO, Era, Shop, box_at, options_of
from tests.sessions.tools.tool_calls import User, Watcher, box_of, call_of

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
    tools = {tool.name: tool for tool in box.offered()}
    assert list(tools) == sorted(tools)
    assert tools["price"].description == "Say what something costs."
    assert json.loads(tools["price"].parameters)["required"] == ["item"]


async def test_what_is_not_annotated_as_harmless_asks_its_user(box: ToolRegistry) -> None:
    tools = {tool.name: tool for tool in box.offered()}
    assert (tools["price"].approval, tools["price"].idempotent) == (Approval.NEVER, True)
    assert (tools["order"].approval, tools["order"].idempotent) == (Approval.ALWAYS, True)
    assert (tools["wait"].approval, tools["wait"].idempotent) == (Approval.ALWAYS, False)


async def test_a_call_gives_the_text_of_its_result(box: ToolRegistry) -> None:
    assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"


async def test_structured_content_that_is_said_as_text_is_told_once(box: ToolRegistry) -> None:
    assert await box.run("price", {"item": "tea", "pieces": 2}, call_of()) == "6"


async def test_what_is_no_text_is_named(box: ToolRegistry) -> None:
    text = await box.run("picture", {}, call_of())
    assert text.splitlines()[:2] == [
        "Here it is:",
        "[An image, image/png, 30 bytes. It can't be shown here.]",
    ]


async def test_what_a_tool_says_about_its_failure_reaches_the_model(box: ToolRegistry) -> None:
    with pytest.raises(ToolFailed, match="The shelf is empty"):
        await box.run("fail", {}, call_of())


async def test_arguments_that_the_server_refuses_are_explained(box: ToolRegistry) -> None:
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


async def test_a_call_whose_time_is_up_is_cancelled_at_the_server(shop: Shop) -> None:
    async with shop.served() as url, box_at(options_of(url, call_s=2.0)) as box:
        with pytest.raises(ToolLost, match=r"within 2 s"):
            await box.run("wait", {"name": "alice"}, call_of())
        assert await shop.left.get() == "alice"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Accepted(content={"sure": True}), "tea: accept sure=True"),
        (Declined(), "tea: decline None"),
        (Dismissed(), "tea: cancel None"),
    ],
)
async def test_a_server_asks_the_user_of_its_call(box: ToolRegistry, answer: Answer, result: str) -> None:
    user = User()
    running = asyncio.create_task(box.run("sell", {"item": "tea"}, call_of(elicit=user.elicit)))
    elicitation = await user.answers(answer)
    assert elicitation.message == "Sell tea?"
    assert json.loads(elicitation.schema)["required"] == ["sure"]
    assert await running == result


async def test_each_question_reaches_the_user_whose_call_it_is(box: ToolRegistry) -> None:
    """One session has the calls of all users."""
    users = {name: User() for name in ("alice", "bob", "carol")}
    calls = [
        asyncio.create_task(box.run("sell", {"item": name}, call_of(name, elicit=user.elicit)))
        for name, user in users.items()
    ]
    for name, user in reversed(users.items()):
        assert (await user.answers(Accepted(content={"sure": name == "bob"}))).message == f"Sell {name}?"
    assert await asyncio.gather(*calls) == [f"{name}: accept sure={name == 'bob'}" for name in users]
    assert all(user.questions.empty() for user in users.values())


async def test_a_question_ends_with_its_call(box: ToolRegistry) -> None:
    user = User()
    running = asyncio.create_task(box.run("sell", {"item": "tea"}, call_of(elicit=user.elicit)))
    _, waiting = await user.questions.get()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(waiting.cancelled)


async def test_a_call_has_a_key_that_is_its_own(box: ToolRegistry) -> None:
    assert json.loads(await box.run("who", {}, call_of(call_id="c7"))) == {"midstream/call": "c7"}


async def test_a_server_is_told_whose_call_it_is_where_the_operator_wants_that(shop: Shop) -> None:
    async with shop.served() as url, box_at(options_of(url, identify=True)) as box:
        assert json.loads(await box.run("who", {}, call_of("digest", "c7"))) == {
            "midstream/call": "c7",
            "midstream/conversation": "talk",
            "midstream/owner": "digest",
        }


async def test_a_change_of_the_list_is_heard_of(box: ToolRegistry) -> None:
    before = box.offered()
    await box.run("extend", {"name": "again"}, call_of())
    await eventually(lambda: box.tool("again") is not None)
    assert [tool for tool in box.offered() if tool.name != "again"] == list(before)
    assert await box.run("again", {"item": "tea"}, call_of()) == "tea is ordered"


async def test_only_the_tools_that_are_named_are_offered(shop: Shop) -> None:
    async with shop.served() as url, box_at(options_of(url, tools=("price", "sing"))) as box:
        assert [tool.name for tool in box.offered()] == ["price"]
        with pytest.raises(ToolFailed, match="no tool 'order'"):
            await box.run("order", {"item": "tea"}, call_of())


async def test_two_servers_have_their_own_prefixes(shop: Shop, era: Era) -> None:
    other = Shop(era)
    async with (
        shop.served() as first,
        other.served() as second,
        box_at(
            options_of(first, prefix="a_", tools=("order",)),
            options_of(second, prefix="b_", name="other", tools=("order",)),
        ) as box,
    ):
        assert [tool.name for tool in box.offered()] == ["a_order", "b_order"]
        assert await box.run("b_order", {"item": "tea"}, call_of()) == "tea is ordered"


async def test_a_name_that_is_taken_is_left_out_and_logged(shop: Shop) -> None:
    def order(item: str) -> str:
        return "from here"

    functions = box_of(order)._sources
    async with shop.served() as url, box_at(options_of(url, tools=("order", "price"))) as box:
        both = ToolRegistry([*functions, *box._sources])
        with structlog.testing.capture_logs() as lines:
            assert [tool.name for tool in both.offered()] == ["order", "price"]
        assert [line["tool"] for line in lines] == ["order"]
        assert await both.run("order", {"item": "tea"}, call_of()) == "from here"


async def test_a_server_that_is_away_at_the_start_is_used_when_it_comes(shop: Shop) -> None:
    async with shop.served() as url:
        pass
    async with box_at(options_of(url)) as box:
        assert box.offered() == ()
        async with Shop(shop.era).served(port_of(url)):
            await eventually(lambda: box.tool("order") is not None)
            assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"


async def test_a_server_that_goes_away_takes_its_tools_with_it_and_brings_them_back(shop: Shop) -> None:
    async with AsyncExitStack() as stack:
        async with shop.served() as url:
            box = await stack.enter_async_context(box_at(options_of(url)))
            assert box.tool("order") is not None
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


async def test_a_session_that_the_server_forgot_is_opened_anew(shop: Shop) -> None:
    """A server that begins anew between two calls knows no session of before; the call was not run, and the next one is."""
    if shop.era == "modern":
        return  # has no sessions
    async with AsyncExitStack() as stack:
        async with shop.served() as url:
            box = await stack.enter_async_context(box_at(options_of(url), timing=SLOW))
        async with Shop(shop.era).served(port_of(url)):
            with pytest.raises(ToolFailed, match=r"has restarted\. The tool was not run"):
                await box.run("order", {"item": "tea"}, call_of())
            await eventually(lambda: box.tool("order") is None)
            await eventually(lambda: box.tool("order") is not None)
            assert await box.run("order", {"item": "tea"}, call_of()) == "tea is ordered"


async def test_headers_of_the_operator_come_with_every_request(shop: Shop) -> None:
    async with shop.served() as url:
        box = ToolRegistry([McpServer(options_of(url), {"Authorization": "Bearer secret"}, timing=TEMPO)])
        async with box.running():
            await box.run("order", {"item": "tea"}, call_of())
    assert {headers.get("authorization") for headers in shop.heard} == {"Bearer secret"}
