"""Server tools at the Responses endpoint. Clients see them as tools of MCP servers; approvals hold for the arguments that were shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from connections.api.replies import StoredReply
from connections.api.responses import store as response_store
from connections.api.responses.encoder import MAX_NOTE_BYTES
from connections.api.responses.store import ResponseStore
from engine.scripted import Call
from sessions.errors import Overloaded, StoreDown
from sessions.tools.function_tools import tool
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import MODEL, client_of
from tests.app.responses_client import responses_socket
from tests.app.server_tools import PAID
from tests.jwt_signing import KEY
from tests.sessions.chat_driver import eventually
from tests.sessions.tools.mcp_servers import Shop


@tool(approval="never")
async def hold() -> str:
    """Holds on."""
    HOLDS["held"].set()
    await HOLDS["go"].wait()
    return "Held."


HOLDS: dict[str, asyncio.Event] = {}


def explained(name: str) -> Callable[[], str]:
    def explains() -> str:
        return name

    explains.__name__ = name
    explains.__doc__ = "Explains. " + "x" * 15_000
    return explains


LONG = [f"long_{number}" for number in range(MAX_NOTE_BYTES // 15_000 + 1)]
globals().update({name: tool(explained(name)) for name in LONG})
TOOLS = ("tests.app.server_tools:noon", "tests.app.server_tools:pay")
OURS: Any = {"type": "mcp", "server_label": "midstream", "require_approval": "never"}
PAY = Call("pay", '{"to": "Ann"}')


@pytest.fixture(autouse=True)
def nobody_is_paid() -> Iterator[None]:
    PAID.clear()
    yield
    PAID.clear()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path, tools=TOOLS) as service:
        yield service


async def create_response(sdk: AsyncOpenAI, text: Any, **more: Any) -> Response:
    return await sdk.responses.create(model=MODEL, input=text, **({"tools": [OURS]} | more))


def allowing(response: Response, *, approve: bool = True) -> list[Any]:
    return [
        {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": approve}
        for item in response.output
        if item.type == "mcp_approval_request"
    ]


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_an_approval_in_a_long_chain_is_taken_as_the_response_that_asked_was_made(
    truncation: Any, sdk: AsyncOpenAI, running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves out is as before: the reply after the call is a part of that response."""
    first = await create_response(sdk, "word " * 200)
    running.engine.script([PAY])
    running.engine.script("Paid.")
    pending = await create_response(sdk, "Pay Ann.", previous_response_id=first.id, truncation=truncation)
    monkeypatch.setattr(response_store, "MAX_PATH_BYTES", 100)
    if truncation == "auto":
        reported = await create_response(sdk, allowing(pending), previous_response_id=pending.id)
        assert (reported.output_text, PAID) == ("Paid.", ["Ann"])
    else:
        with pytest.raises(openai.BadRequestError, match="set `truncation` to `auto`"):
            await create_response(sdk, allowing(pending), previous_response_id=pending.id)
        assert PAID == []


async def test_a_late_approval_is_told_that_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, tools=TOOLS, tool_wait_s=0.05) as running, client_of(running) as sdk:
        running.engine.script([PAY])
        pending = await create_response(sdk, "Pay Ann.")
        while len(running.engine.requests) < 2:
            await running.get("/healthz")
        with pytest.raises(openai.ConflictError, match="was not answered in time") as refused:
            await create_response(sdk, allowing(pending), previous_response_id=pending.id)
    assert (refused.value.code, PAID) == ("approval_expired", [])


async def test_a_stop_ends_the_tool_that_runs(tmp_path: Path) -> None:
    """The call of a real MCP server is cancelled there."""
    shop = Shop("modern")
    async with shop.served() as url:
        file = tmp_path / "tools.toml"
        file.write_text(
            f'[[mcp_server]]\nname = "shop"\nurl = "{url}"\ntools = ["*"]\nprefix = "s_"\nnever_ask = ["*"]\n'
        )
        async with serving(tmp_path, config=str(file)) as running:
            running.engine.script([Call("s_wait", '{"name": "tea"}')])
            headers = {"Authorization": f"Bearer {KEY}"}
            async with responses_socket(running, additional_headers=headers) as talk:
                named = {"type": "mcp", "server_label": "shop", "require_approval": "never"}
                await talk.send(input="Wait.", tools=[named])
                await talk.next("response.mcp_call.in_progress")
                await shop.waiting.get()
                await talk.send(type="midstream:response.cancel")
                last = await talk.next("response.incomplete")
    assert last["response"]["status"] == "cancelled"
    assert last["response"]["output"][-1]["type"] == "mcp_call"


async def test_an_approval_that_comes_twice_at_once_is_heard_once(
    sdk: AsyncOpenAI, running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second was checked before the first was taken."""
    first = ResponseStore.continue_with_answers

    async def twice(self: ResponseStore, *args: Any) -> StoredReply:
        self.forget(await first(self, *args))
        return await first(self, *args)

    running.engine.script([PAY])
    running.engine.script("Paid.")
    pending = await create_response(sdk, "Pay Ann.")
    monkeypatch.setattr(ResponseStore, "continue_with_answers", twice)
    with pytest.raises(openai.ConflictError, match="were already answered") as refused:
        await create_response(sdk, allowing(pending), previous_response_id=pending.id)
    assert (refused.value.code, PAID) == ("approval_answered", ["Ann"])


async def test_calls_are_answered_once_each_and_all_in_one(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    running.engine.script([Call("look", call_id="c_1")])
    look: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    pending = await create_response(sdk, "Look.", tools=[OURS, look])
    (call,) = (item for item in pending.output if item.type == "function_call")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "A tree."}
    with pytest.raises(openai.BadRequestError, match="may have one output of the call"):
        await create_response(
            sdk,
            [output, output | {"output": "A lake."}],
            previous_response_id=pending.id,
            tools=[OURS, look],
        )


async def test_nothing_is_left_of_a_response_that_fails_once_its_turn_was_accepted(
    sdk: AsyncOpenAI, running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise StoreDown("The store is away.")

    running.engine.script([PAY])
    running.engine.script("Paid.")
    pending = await create_response(sdk, "Pay Ann.")
    monkeypatch.setattr(ResponseStore, "answered", fail)
    with pytest.raises(openai.InternalServerError):
        await create_response(sdk, allowing(pending), previous_response_id=pending.id)
    await eventually(lambda: running.service._sessions.statistics().conversations == 0)


async def test_a_server_that_is_full_says_so_of_tools_too(
    sdk: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any) -> None:
        raise Overloaded("Too many calls are open.", retry_after_ms=1000)

    monkeypatch.setattr(ResponseStore, "begin", full)
    with pytest.raises(openai.APIStatusError, match="Too many calls are open"):
        await create_response(sdk, "Pay Ann.")


async def test_what_is_kept_of_tools_has_a_bound(tmp_path: Path) -> None:
    tools = (TOOLS[0], *(f"tests.app.test_responses_mcp:{one}" for one in LONG))
    async with serving(tmp_path, tools=tools) as running, client_of(running) as sdk:
        with pytest.raises(openai.BadRequestError, match="name fewer in `allowed_tools`"):
            await create_response(sdk, "Hi.")
        few = OURS | {"allowed_tools": ["noon"]}
        assert (await create_response(sdk, "Hi.", tools=[few])).status == "completed"


@pytest.fixture
async def holding(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """With a tool that reports its call, and takes its time."""
    HOLDS.update(held=asyncio.Event(), go=asyncio.Event())
    async with serving(tmp_path, tools=("tests.app.test_responses_mcp:hold",)) as running:
        yield running
    HOLDS["go"].set()


def turns_of(running: InProcessService) -> int:
    return running.service._sessions.statistics().turns


async def test_a_message_that_leaves_the_queue_ends_nobody_elses_response(holding: InProcessService) -> None:
    """While the server runs a tool."""
    holding.engine.script([Call("hold")])
    holding.engine.script("Well.")
    async with client_of(holding) as sdk:
        first = asyncio.create_task(create_response(sdk, "Hold on.", conversation="c"))
        await HOLDS["held"].wait()
        second = asyncio.create_task(create_response(sdk, "And?", conversation="c", tools=openai.omit))
        await eventually(lambda: turns_of(holding) == 2)
        second.cancel()
        await eventually(lambda: turns_of(holding) == 1)
        HOLDS["go"].set()
        reported = await first
    assert (reported.status, reported.output_text) == ("completed", "Well.")


async def test_a_response_whose_call_was_allowed_and_runs_is_not_gone_on_from(
    holding: InProcessService,
) -> None:
    holding.engine.script([Call("hold")])
    holding.engine.script("Well.")
    with_approval = OURS | {"require_approval": "always"}
    async with client_of(holding) as sdk:
        pending = await create_response(sdk, "Hold on.", tools=[with_approval])
        reported = asyncio.create_task(
            create_response(
                sdk,
                allowing(pending),
                previous_response_id=pending.id,
                tools=[with_approval],
                background=True,
            )
        )
        await HOLDS["held"].wait()
        with pytest.raises(openai.BadRequestError, match="are running") as refused:
            await create_response(sdk, "Never mind.", previous_response_id=pending.id, tools=[with_approval])
        assert refused.value.code == "response_in_progress"
        reported.cancel()  # it has no id yet: its client leaves, and the tool ends
        await eventually(lambda: turns_of(holding) == 0)
        shown = await sdk.responses.input_items.list(pending.id)
    assert (len(shown.data), HOLDS["go"].is_set()) == (1, False)
