"""Stored responses: each is a place in a conversation, and can be continued, followed, stopped and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from connections.api.responses import store as response_store
from engine.scripted import Call, ScriptedEngine, Thought
from sessions.store import history
from sessions.turn import prompt
from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import peer
from tests.app.responses_client import responses_socket
from tests.app.test_responses_http import post
from tests.jwt_signing import KEY

MODEL = "midstream-demo"
WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


def client_of(running: InProcessService, key: str = KEY) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as client:
        yield client


async def create_response(sdk: AsyncOpenAI, text: Any, **more: Any) -> Response:
    return await sdk.responses.create(model=MODEL, input=text, **more)


def read(running: InProcessService, number: int = -1) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in running.engine.requests[number].messages]


async def test_a_response_is_gone_on_from_and_a_fork_is_free(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    for text in ("One.", "Two.", "Three."):
        running.engine.script(text)
    first = await create_response(sdk, "First?")
    assert (first.store, first.conversation) == (True, None)  # type: ignore[attr-defined]
    await create_response(sdk, "Second?", previous_response_id=first.id)
    await create_response(sdk, "Or third?", previous_response_id=first.id)
    history = [("user", "First?"), ("assistant", "One.")]
    assert read(running, 1) == [*history, ("user", "Second?")]
    assert read(running, 2) == [*history, ("user", "Or third?")]


async def test_instructions_are_for_one_response_and_system_items_for_all(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    system = {"role": "developer", "content": "You are kind."}
    first = await create_response(
        sdk, [system, {"role": "user", "content": "Hello!"}], instructions="Be brief."
    )
    await create_response(sdk, "And?", previous_response_id=first.id, instructions="Be long.")
    await create_response(sdk, "And?", previous_response_id=first.id)
    assert [read(running, number)[0] for number in range(3)] == [
        ("system", "Be brief.\n\nYou are kind."),
        ("system", "Be long.\n\nYou are kind."),
        ("system", "You are kind."),
    ]


async def test_a_response_is_read_again_with_what_it_answered(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    running.engine.script([Thought("Hm."), "Good ", "day."])
    reported = await create_response(
        sdk, "Hello!", metadata={"for": "a test"}, instructions="Be brief.", tools=[WEATHER]
    )
    again = await sdk.responses.retrieve(reported.id)
    assert again.model_dump(exclude={"completed_at"}) == reported.model_dump(exclude={"completed_at"})
    second = await create_response(sdk, "And?", previous_response_id=reported.id)
    items = (await sdk.responses.input_items.list(second.id, order="asc")).data
    assert [(item.type, getattr(item, "role", None)) for item in items] == [
        ("message", "user"), ("reasoning", None), ("message", "assistant"), ("message", "user"),
    ]  # fmt: skip
    newest = await sdk.responses.input_items.list(second.id, limit=1)
    assert newest.data[0].content[0].text == "And?"  # type: ignore[union-attr]
    assert newest.has_next_page()


async def test_a_response_belongs_to_its_owner(sdk: AsyncOpenAI, running: InProcessService) -> None:
    first = await create_response(sdk, "Hello!")
    async with client_of(running, KEY[::-1]) as other:
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await create_response(other, "And?", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"


async def test_responses_are_deleted_from_the_last_one_on(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    first = await create_response(sdk, "Hello!")
    second = await create_response(sdk, "And?", previous_response_id=first.id)
    with pytest.raises(openai.ConflictError):
        await sdk.responses.delete(first.id)
    for response in (second, first):
        await sdk.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(response.id)
    assert await conversations(running) == []


async def test_nothing_is_left_of_a_response_that_was_deleted(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    first = await create_response(sdk, "Hello!", conversation="mine")
    second = await create_response(
        sdk, "secret", conversation="mine", instructions="secret", metadata={"k": "secret"}
    )
    assert b"secret" in await stored_bytes(running)
    await sdk.responses.delete(second.id)
    assert b"secret" not in await stored_bytes(running)
    assert (await sdk.responses.retrieve(first.id)).status == "completed"


async def stored_bytes(running: InProcessService) -> bytes:
    """All that the store has of conversations called `mine`, without their journals and prompts."""
    client = running.service._sessions.parts.storage.history._client
    found = b""
    async for key in client.scan_iter("ms:{*/mine}"):
        fields = await client.hgetall(key)
        found += b"".join(value for name, value in fields.items() if name != b"system")
    return found


async def test_what_is_not_to_be_stored_is_kept_nowhere(sdk: AsyncOpenAI, running: InProcessService) -> None:
    response = await create_response(sdk, "Hello!", store=False)
    assert response.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError):
        await create_response(sdk, "And?", previous_response_id=response.id)
    assert await conversations(running) == []


async def test_calls_are_gone_on_from_with_their_outputs(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script([Call("weather"), Call("weather")])
    running.engine.script("Sunny.")
    first = await create_response(sdk, "Weather?", tools=[WEATHER])
    calls = [item.call_id for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call, "output": "Sun"} for call in calls]
    second = await create_response(sdk, outputs, previous_response_id=first.id, tools=[WEATHER])
    assert (second.output_text, second.store) == ("Sunny.", True)  # type: ignore[attr-defined]
    assert [role for role, _ in read(running)] == ["user", "assistant", "tool", "tool"]
    third = await create_response(sdk, "Thanks.", previous_response_id=second.id)
    assert [role for role, _ in read(running)] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert third.status == "completed"


async def test_outputs_may_come_with_other_fields_which_the_reply_after_them_follows(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    running.engine.script([Call("weather")])
    running.engine.script([Call("weather")])
    running.engine.script("Sunny.")
    first = await create_response(sdk, "Weather?", tools=[WEATHER], instructions="Look first.")

    def output(response: Response) -> list[Any]:
        call_id = next(item.call_id for item in response.output if item.type == "function_call")
        parts = [{"type": "input_text", "text": "Sun"}]
        return [{"type": "function_call_output", "call_id": call_id, "output": parts, "status": "completed"}]

    named = {"type": "function", "name": "weather"}
    second = await create_response(
        sdk, output(first), previous_response_id=first.id, tools=[WEATHER], tool_choice=named
    )
    assert (second.store, running.engine.requests[-1].spec.tool_choice) == (True, "named")  # type: ignore[attr-defined]
    third = await create_response(
        sdk, output(second), previous_response_id=second.id, max_output_tokens=50, temperature=0.5
    )
    assert (third.output_text, third.store) == ("Sunny.", True)  # type: ignore[attr-defined]
    request = running.engine.requests[-1]
    assert (request.spec.tools, request.params.max_new_tokens, request.params.temperature) == ((), 50, 0.5)
    assert [role for role, _ in read(running)] == ["user", "assistant", "tool", "assistant", "tool"]
    again = await sdk.responses.retrieve(third.id)
    assert (again.output_text, again.max_output_tokens, again.tools) == ("Sunny.", 50, [])
    await create_response(sdk, "Thanks.", previous_response_id=third.id)
    assert [role for role, _ in read(running)][-2:] == ["assistant", "user"]


async def test_what_outputs_bring_with_them_is_filtered_and_bounded(tmp_path: Path) -> None:
    words = tmp_path / "filters.toml"
    words.write_text('[filters.input]\nwords = ["grapefruit"]')
    async with serving(tmp_path, config=str(words)) as running, client_of(running) as sdk:
        running.engine.script([Call("weather")])
        first = await create_response(sdk, "Weather?", tools=[WEATHER])
        call_id = first.output[0].call_id  # type: ignore[union-attr]
        output = [{"type": "function_call_output", "call_id": call_id, "output": "Sun"}]
        with pytest.raises(openai.BadRequestError, match="filter"):
            await create_response(sdk, output, previous_response_id=first.id, instructions="Say grapefruit.")
        long = await create_response(
            sdk, output, previous_response_id=first.id, instructions="Be kind. " * 2000
        )
        assert long.store is False  # type: ignore[attr-defined]


async def test_what_no_conversation_keeps_is_answered_and_says_so(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    history: list[Any] = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi."}]
    first = await create_response(sdk, "Hello!")
    response = await create_response(sdk, history, previous_response_id=first.id)
    assert response.store is False  # type: ignore[attr-defined]
    assert [role for role, _ in read(running)] == ["user", "assistant", "assistant", "user"]
    for field in ({"background": True}, {"conversation": "mine"}):
        with pytest.raises(openai.BadRequestError):
            await create_response(sdk, history, **field)  # type: ignore[arg-type]


async def test_a_conversation_has_a_name_of_its_clients(sdk: AsyncOpenAI, running: InProcessService) -> None:
    first = await create_response(sdk, "Hello!", conversation="mine")
    assert first.conversation is not None
    assert first.conversation.id == "mine"
    await create_response(sdk, "And?", conversation="mine")
    assert [role for role, _ in read(running)] == ["user", "assistant", "user"]


async def test_a_response_outlives_its_socket(running: InProcessService) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with responses_socket(running, additional_headers=headers) as talk:
        first = await talk.response(input="Hello!")
    async with responses_socket(running, additional_headers=headers) as talk:
        await talk.response(input="And?", previous_response_id=first["id"])
    assert [role for role, _ in read(running)] == ["user", "assistant", "user"]


async def test_nothing_is_left_out_of_a_prompt_unless_it_may_be(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(context_tokens=60)) as running, client_of(running) as sdk:
        last = await create_response(sdk, "word " * 20)
        last = await create_response(sdk, "word " * 15, previous_response_id=last.id, max_output_tokens=1)
        with pytest.raises(openai.BadRequestError) as refused:
            await create_response(sdk, "word " * 20, previous_response_id=last.id)
        assert refused.value.code == "context_length_exceeded"
        shorter = await create_response(sdk, "word " * 20, previous_response_id=last.id, truncation="auto")
        assert shorter.status == "completed"


async def test_a_client_that_leaves_stops_the_engine_and_the_history_is_what_was_sent(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True, reply="One two three four five.")
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        stream = await create_response(sdk, "Count.", stream=True)
        seen, response_id = "", ""
        async for event in stream:  # type: ignore[attr-defined]
            if event.type == "response.created":
                response_id = event.response.id
                await wait_for_requests(running, 1)
                engine.step()
            if event.type == "response.output_text.delta":
                seen += event.delta
                if "two" in seen:
                    break
                engine.step()
        await stream.close()  # type: ignore[attr-defined]
        steps = engine.statistics().steps
        while not engine.statistics().cancels:
            await running.get("/healthz")
        assert engine.statistics().steps <= steps + 1
        while (response := await sdk.responses.retrieve(response_id)).status == "in_progress":
            pass
        assert (response.status, response.output_text) == ("cancelled", seen)


async def test_a_response_that_nobody_waits_for_is_followed_from_any_place(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True, reply="One two three four five.")
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        started = await create_response(sdk, "Count.", background=True)
        assert (started.status, started.background) == ("in_progress", True)
        await wait_for_requests(running, 1)
        for _ in range(3):
            engine.step()
        numbers: dict[int, Any] = {}
        async for event in await sdk.responses.retrieve(started.id, stream=True):
            numbers[event.sequence_number] = event
            if event.type == "response.output_text.delta":
                engine.step()
                if len(numbers) > 6:
                    break
        text = "One two three four five."
        first = min(number for number, event in numbers.items() if event.type.endswith("output_text.delta"))
        for place in (first, first + 3, first + 9):
            rest = await sdk.responses.retrieve(started.id, stream=True, starting_after=place)
            reported = ""
            async for event in rest:
                assert event.sequence_number > place
                reported += event.delta if event.type == "response.output_text.delta" else ""
                while not event.type.endswith("completed") and engine.statistics().steps < 8:
                    engine.step()
            known = place - first + len(numbers[first].delta)
            assert reported == text[known:]
        whole = await sdk.responses.retrieve(started.id)
        assert (whole.status, whole.output_text) == ("completed", text)


async def test_a_response_that_nobody_waits_for_is_cancelled(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True, reply="One two three four five.")
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        started = await create_response(sdk, "Count.", background=True)
        await wait_for_requests(running, 1)
        engine.step()
        cancelled = await sdk.responses.cancel(started.id)
        assert (cancelled.status, engine.statistics().steps) == ("cancelled", 1)
        assert (await sdk.responses.cancel(started.id)).status == "cancelled"


async def test_who_sends_no_key_is_kept_nothing_for(running: InProcessService) -> None:
    async with peer(running) as client:
        client.write(post(running, {"model": MODEL, "input": "Hello!"}))
        assert '"store":false' in await client.rest()


async def conversations(running: InProcessService) -> list[bytes]:
    """The names of all keys in the store."""
    client = running.service._sessions.parts.storage.history._client
    return [name async for name in client.scan_iter("ms:{*/response-*}")]


async def wait_for_requests(running: InProcessService, requests: int) -> None:
    """Returns once the engine has been asked."""
    while len(running.engine.requests) < requests:
        await running.get("/healthz")


async def test_an_input_is_counted_as_the_model_would_read_it(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    counted = await sdk.responses.input_tokens.count(model=MODEL, input="Hello there!")
    first = await create_response(sdk, "Hello there!")
    assert first.usage is not None
    assert counted.input_tokens == first.usage.input_tokens
    more = await sdk.responses.input_tokens.count(model=MODEL, input="And?", previous_response_id=first.id)
    second = await create_response(sdk, "And?", previous_response_id=first.id)
    assert second.usage is not None
    assert more.input_tokens == second.usage.input_tokens
    assert len(running.engine.requests) == 2


async def test_a_client_that_names_items_has_its_conversation_kept_as_one(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    """The AI SDK's default: it repeats the conversation, and names the items that came from this server."""
    running.engine.script([Call("weather")])
    system: Any = {"role": "developer", "content": "Be kind."}
    user: Any = {"role": "user", "content": "Weather?"}
    first = await create_response(sdk, [system, user], tools=[WEATHER])
    (call,) = first.output
    assert call.type == "function_call"
    named: list[Any] = [{"type": "item_reference", "id": call.id}]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun"}
    second = await create_response(sdk, [system, user, *named, output], tools=[WEATHER])
    assert (second.previous_response_id, second.conversation) == (first.id, first.conversation)
    named += [output, {"type": "item_reference", "id": second.output[0].id}]
    third = await create_response(
        sdk, [system, user, *named, {"role": "user", "content": "Thanks."}], tools=[WEATHER]
    )
    assert (third.previous_response_id, third.conversation) == (second.id, first.conversation)
    roles = [role for role, _ in read(running)]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    other = await create_response(sdk, [{"role": "user", "content": "Snow?"}, *named, user], tools=[WEATHER])
    assert (other.previous_response_id, other.store) == (None, False)  # type: ignore[attr-defined]
    with pytest.raises(openai.BadRequestError) as refused:
        await create_response(sdk, [user, {"type": "item_reference", "id": "msg_unknown_0"}])
    assert refused.value.param == "input[1].id"


async def test_an_owner_has_so_many_bytes_of_responses_and_the_oldest_leave(
    sdk: AsyncOpenAI, running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their turns stay in the history, and so does what somebody else keeps."""
    async with client_of(running, KEY[::-1]) as other:
        theirs = await create_response(other, "Mine?", metadata={"a": "x" * 500})
        monkeypatch.setattr(history, "NOTES_BYTES", 6_000)
        large = {"a": "x" * 500, "b": "y" * 500}
        responses = [await create_response(sdk, "Hello?", metadata=large, conversation="mine")]
        responses += [await create_response(sdk, "Hello?", metadata=large) for _ in range(5)]
        kept = [one for one in responses if await is_stored(sdk, one)]
        assert 1 <= len(kept) <= 4
        assert kept == responses[-len(kept) :]
        assert await is_stored(other, theirs)
    with pytest.raises(openai.BadRequestError, match="Send the whole conversation"):
        await create_response(sdk, "And?", previous_response_id=responses[0].id)
    await create_response(sdk, "And?", conversation="mine")
    assert read(running)[0] == ("user", "Hello?")


async def is_stored(sdk: AsyncOpenAI, response: Response) -> bool:
    try:
        await sdk.responses.retrieve(response.id)
    except openai.NotFoundError:
        return False
    return True


async def test_of_what_was_said_before_a_response_no_more_is_read_than_a_request_could_bring(
    sdk: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = None
    for _ in range(4):
        last = await create_response(
            sdk, "word " * 200, previous_response_id=None if last is None else last.id
        )
    assert last is not None
    monkeypatch.setattr(response_store, "MAX_PATH_BYTES", 2_000)
    assert (await sdk.responses.retrieve(last.id)).status == "completed"
    items = (await sdk.responses.input_items.list(last.id, order="asc")).data
    assert [getattr(item, "role", None) for item in items] == ["user", "assistant", "user"]
    for more in ({}, {"store": False}):
        with pytest.raises(openai.BadRequestError) as refused:
            await create_response(sdk, "And?", previous_response_id=last.id, **more)
        assert refused.value.code == "context_length_exceeded"
    assert (
        await create_response(sdk, "And?", previous_response_id=last.id, truncation="auto")
    ).status == "completed"


async def test_a_conversation_that_no_window_holds_is_not_read_to_be_gone_on_with_whole(
    sdk: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await create_response(sdk, "word " * 200, conversation="long")
    monkeypatch.setattr(prompt, "MOST_BYTES", 2_000)
    with pytest.raises(openai.BadRequestError) as refused:
        await create_response(sdk, "And?", conversation="long")
    assert refused.value.code == "context_length_exceeded"
    assert (await create_response(sdk, "And?", conversation="long", truncation="auto")).status == "completed"
