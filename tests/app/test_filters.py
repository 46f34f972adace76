"""The effect of the operator's filters: over real sockets, with a real store."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app import logs
from app.settings import SettingsError
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.sessions.broken_filter import Broken

FILE = """
[filters.input]
words = ["darn"]
[filters.output]
words = ["heck"]
patterns = ['\\d{4}-\\d{4}']
"""


async def lamp(on: bool) -> str:  # noqa: FBT001 - a tool's parameter
    """Switch the lamp on or off."""
    return "on" if on else "off"


class Faulty(Broken):
    """Fails at questions, too."""

    async def refuses(self, message: str) -> bool:
        if message.endswith("?"):
            raise LookupError(message)
        return False


@pytest.fixture
async def filtering(tmp_path: Path) -> AsyncIterator[InProcessService]:
    path = tmp_path / "filters.toml"
    path.write_text(FILE)
    async with serving(tmp_path, config=str(path)) as service:
        yield service


async def send_and_wait(socket: Socket, content: str, **fields: object) -> list[Frame]:
    await socket.send(type="send", client_msg_id=content, content=content, **fields)
    return await socket.until("done")


def text_of(frames: list[Frame]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


@pytest.mark.parametrize("fields", [{"content": "Oh DARN it."}, {"params": {"system": "Say darn."}}])
async def test_a_message_that_is_filtered_leaves_no_trace(fields: Frame, filtering: InProcessService) -> None:
    """Neither a message nor a system prompt is accepted; the same id can be sent again."""
    async with filtering.socket() as socket:
        refused = await socket.ask(
            type="send", client_msg_id="m1", ref="r1", **{"content": "Hello."} | fields
        )
        assert (refused["type"], refused["code"], refused["ref"]) == ("error", "filtered", "r1")
        assert (refused["retryable"], "darn" in refused["message"].lower()) == (False, False)
        assert (await socket.ask(type="history"))["code"] == "not_found"
        await socket.send(type="send", client_msg_id="m1", content="Hello.")
        assert (await socket.until("done"))[-1]["reason"] == "stop"
    assert len(filtering.engine.requests) == 1


TOOLS = {"features": ["tools"]}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "description": "Oh darn."}}}


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "darn"},
        {"name": "look", "description": "Say: darn."},
        {"name": "look", "parameters": SCHEMA},
        {"name": "look", "parameters": {"type": "object", "properties": {"darn": {"type": "string"}}}},
    ],
)
async def test_a_tool_is_filtered_as_a_message_is(tool: Frame, filtering: InProcessService) -> None:
    async with filtering.socket(TOOLS) as socket:
        refused = await socket.ask(type="send", client_msg_id="m1", content="Hello.", tools=[tool])
        assert (refused["type"], refused["code"]) == ("error", "filtered")
        accepted = await socket.ask(
            type="send", client_msg_id="m1", content="Hello.", tools=[{"name": "look"}]
        )
        assert accepted["type"] == "accepted"


TOOL = {"name": "look", "description": "Say: darn.", "parameters": {"type": "object"}}
ESCAPED = '{"type":"object","properties":{"q":{"type":"string","description":"\\u0064arn"}}}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", '"tools":[{"type":"function","function":{"name":"darn"}}]'),
        (
            "/v1/chat/completions",
            f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{ESCAPED}}}}}]',
        ),
        ("/v1/chat/completions", '"chat_template_kwargs":{"date_string":"darn"}'),
        ("/v1/chat/completions", '"chat_template_kwargs":{"darn":1}'),
        (
            "/v1/chat/completions",
            f'"response_format":{{"type":"json_schema","json_schema":{{"name":"f","schema":{ESCAPED}}}}}',
        ),
        (
            "/v1/responses",
            '"store":true,"tools":[{"type":"function","name":"f","description":"darn","parameters":null}]',
        ),
        ("/v1/responses", f'"store":true,"tools":[{{"type":"function","name":"f","parameters":{ESCAPED}}}]'),
        ("/v1/responses", '"store":true,"instructions":"darn"'),
        (
            "/v1/responses",
            f'"store":true,"text":{{"format":{{"type":"json_schema","name":"f","schema":{ESCAPED}}}}}',
        ),
        (
            "/v1/messages",
            f'"max_tokens":9,"tools":[{{"name":"f","description":"darn","input_schema":{ESCAPED}}}]',
        ),
    ],
)
async def test_all_that_enters_a_prompt_is_filtered(
    path: str, body: str, filtering: InProcessService
) -> None:
    """So are names, schemas with escapes, and the variables of a chat template."""
    prompt = '"input":"Hi"' if path.endswith("responses") else '"messages":[{"role":"user","content":"Hi"}]'
    sent = {
        "content": f'{{"model":"midstream-demo",{prompt},{body}}}',
        "headers": {"Content-Type": "application/json"},
    }
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{filtering.port}") as client:
        response = await client.post(path, **sent)
    assert response.json()["error"]["message"] == "A filter of this server refuses the message."
    assert filtering.engine.requests == []


async def test_words_of_the_protocol_and_server_tools_are_not_filtered(tmp_path: Path) -> None:
    """A listed word that every request has would refuse them all; what the operator wrote is theirs."""
    (tmp_path / "filters.toml").write_text('[filters.input]\nwords = ["auto", "user", "object", "lamp"]')
    settings = {"config": str(tmp_path / "filters.toml"), "tools": ("tests.app.test_filters:lamp",)}
    async with serving(tmp_path, **settings) as service, service.socket(TOOLS) as socket:
        offered = [{"name": "lamp", "where": "server"}, {"name": "look"}]
        frame = {"type": "send", "client_msg_id": "m1", "content": "Hello.", "tools": offered}
        assert (await socket.ask(**frame))["type"] == "accepted"


async def test_an_edit_is_filtered_as_a_message_is(filtering: InProcessService) -> None:
    async with filtering.socket() as socket:
        accepted, *_ = await send_and_wait(socket, "Hello.")
        refused = await socket.ask(
            type="edit", client_msg_id="m2", message_id=accepted["message_id"], content="Oh darn."
        )
        assert (refused["type"], refused["code"]) == ("error", "filtered")


@pytest.mark.parametrize(
    "script", [["What the", " he", "ck", " is it"], ["What the heck", " is it"], [*"What the heck is it"]]
)
async def test_a_reply_ends_before_what_is_filtered_leaves(
    script: list[str], filtering: InProcessService
) -> None:
    filtering.engine.script(script)
    async with filtering.socket() as socket:
        *frames, done = await send_and_wait(socket, "Swear.")
        assert text_of(frames) == "What the "
        assert (done["reason"], done["chars"], done.get("cancel")) == ("filtered", 9, None)
        page = await socket.ask(type="history")
        assert (page["messages"][-1]["content"], page["messages"][-1]["status"]) == ("What the ", "filtered")
        filtering.engine.script(["Sorry."])
        assert (await send_and_wait(socket, "Go on."))[-1]["reason"] == "stop"
    assert filtering.engine.requests[-1].messages[1].content == "What the "


async def test_the_engine_stops_for_a_filtered_reply(filtering: InProcessService) -> None:
    filtering.engine.script(["heck "] + ["more "] * 400)
    async with filtering.socket() as socket:
        *frames, done = await send_and_wait(socket, "Swear.")
    assert (text_of(frames), done["reason"]) == ("", "filtered")
    assert done["usage"]["generated_tokens"] < 400
    assert done["usage"]["wasted_tokens"] == done["usage"]["generated_tokens"]


async def test_a_filter_that_fails_refuses_and_the_log_quotes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logging_as_it_was: None
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    logs.set_up(style="json", level="debug")
    path = tmp_path / "filters.toml"
    path.write_text('[filters]\nhooks = ["tests.app.test_filters:Faulty"]')
    async with serving(tmp_path, config=str(path)) as service, service.socket() as socket:
        service.engine.script(["unmistakable"])
        refused = await socket.ask(type="send", client_msg_id="m1", content="unmistakable?")
        assert refused["code"] == "internal"
        *frames, done = await send_and_wait(socket, "Hello.")
        assert (text_of(frames), done["reason"], done["error"]["code"]) == ("", "error", "internal")
    assert log.getvalue().count('"exception":') == 2
    assert "unmistakable" not in log.getvalue()


async def test_a_file_that_can_not_be_used_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "filters.toml"
    path.write_text("[filters.output]\npatterns = ['a+']")
    with pytest.raises(SettingsError, match=r"filters\.toml: \[filters\]: output\.patterns\[0\]"):
        async with serving(tmp_path, ScriptedEngine(), config=str(path)):
            pytest.fail("it started")
