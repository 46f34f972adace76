"""`/v1/realtime/translations` over real sockets, with the bundled translator: text goes in, its translation comes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from app.models import TRANSLATOR
from engine.machine import EngineOptions
from engine.process.client import EngineClient
from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.jwt_signing import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

TO_CHINESE = {"audio": {"output": {"language": "zh"}}, "publish_policy": "segment"}
MORNING = "早上好。"
REPLY = "This reply was written before it was asked for."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    """A chat model, which is the default, and the bundled translator."""
    translator = EngineClient(
        EngineOptions(model=str(TRANSLATOR), device="cpu", dtype="float32", max_batch=4)
    )
    chat = ServedModel(name="chat", engine=ScriptedEngine())
    models: Any = ServedModels([chat, ServedModel(name="en-zh", engine=translator)])
    async with serving(tmp_path_factory.mktemp("data"), models, read_rate=1000) as running:
        supervision = asyncio.create_task(translator.run())
        await translator.ready(timeout_s=100)
        yield running
        supervision.cancel()
        await asyncio.wait([supervision])


@asynccontextmanager
async def session(running: InProcessService, config: Any = TO_CHINESE, **query: str) -> AsyncIterator[Socket]:
    """A session whose translation has begun."""
    shown = "&".join(f"{name}={value}" for name, value in query.items())
    url = f"{running.url.replace('http', 'ws')}/v1/realtime/translations?{shown}"
    async with connect(url, max_queue=None) as opened:
        socket = Socket(opened)
        socket.ready = (await socket.next("session.created"))["session"]
        if config:
            await socket.send(type="session.update", session=config)
            socket.ready = (await socket.next("session.updated"))["session"]
        yield socket


async def append_text(socket: Socket, *texts: str) -> None:
    for text in texts:
        await socket.send(type="session.input_text_buffer.append", text=text)


async def close(socket: Socket) -> list[Frame]:
    """The events up to the end of a session."""
    await socket.send(type="session.close")
    return await socket.until("session.closed")


async def events_until(socket: Socket, text: str) -> list[Frame]:
    """The events until this much is told."""
    frames: list[Frame] = []
    while transcript(frames) != text:
        frames.append(await socket.next())
    return frames


def transcript(frames: list[Frame], side: str = "output") -> str:
    return "".join(one["delta"] for one in frames if one["type"] == f"session.{side}_transcript.delta")


async def test_words_go_in_one_by_one_and_their_translation_is_told_once(service: InProcessService) -> None:
    config = TO_CHINESE | {"audio": {"input": {"transcription": {"model": ""}}, "output": {"language": "zh"}}}
    async with session(service, config) as socket:
        assert socket.ready["model"] == "en-zh"
        await append_text(socket, *(word + " " for word in ["Good", "morning.", "How", "are", "you?"]))
        before = await events_until(socket, MORNING)
        after = await close(socket)
        assert (await socket.closed())[0] == 1000
        place = socket.ready["conversation_id"]
    assert transcript(before + after, "input") == "Good morning. How are you? "
    assert transcript(before + after) == "早上好。你好吗？"  # noqa: RUF001 - Chinese
    assert place.startswith("conv_")


async def test_openais_client_works_unchanged_but_for_text_that_is_typed(service: InProcessService) -> None:
    append: Any = {"type": "session.input_text_buffer.append", "text": "Good morning. "}
    async with (
        AsyncOpenAI(api_key=KEY, base_url=f"{service.url}/v1") as client,
        client.realtime.translations.connect(model="en-zh") as connection,
    ):
        assert (await connection.recv()).type == "session.created"
        await connection.send(
            {"type": "session.update", "session": {"audio": {"output": {"language": "zh"}}}}
        )
        assert (await connection.recv()).type == "session.updated"
        await connection.send(append)
        await connection.send({"type": "session.close"})
        text = ""
        async for event in connection:
            if event.type == "session.output_transcript.delta":
                text += event.delta
            if event.type == "session.closed":
                break
    assert text == MORNING


async def test_what_cannot_be_done_is_refused_in_words_and_nothing_ends(service: InProcessService) -> None:
    async with session(service, None) as socket:
        await socket.send(type="session.input_text_buffer.append", text="Hello.", event_id="e1")
        first = (await socket.next("error"))["error"]
        assert (first["param"], first["event_id"]) == ("session.audio.output.language", "e1")
        await socket.send(type="session.update", session={"audio": {"output": {"language": "fr"}}})
        second = (await socket.next("error"))["error"]
        assert (second["code"], second["message"]) == (
            "invalid_value",
            "`session.audio.output.language` is one of eng_Latn, zho_Hans for this model.",
        )
        await socket.send(type="session.input_audio_buffer.append", audio="AAAA")
        assert (await socket.next("error"))["error"]["message"] == "Audio is not supported."
        await socket.send(type="session.update", session=TO_CHINESE)
        await append_text(socket, "", "  ", "Good morning.")
        assert transcript(await close(socket)) == MORNING


async def test_as_much_as_one_likes_is_translated_in_parts_of_bounded_length(
    service: InProcessService,
) -> None:
    """More text than a source may have comes faster than it is read, by a chat model that answers each sentence at once."""
    sentence = "word " * 79 + "end. "
    async with session(service, model="chat", client_id="eve", conversation_id="long") as socket:
        await append_text(socket, *(sentence * 20 for _ in range(4)))
        await events_until(socket, " ".join([REPLY] * 80))
        await append_text(socket, *(sentence for _ in range(20)))
        frames = await close(socket)
    async with service.socket({"client_id": "eve"}) as other:
        page = await other.ask(type="history", conversation_id="long")
    assert {frame["type"] for frame in frames} == {"session.output_transcript.delta", "session.closed"}
    assert transcript(frames) == f" {REPLY}" * 20
    sources = [one["content"] for one in page["messages"] if one["role"] == "user"]
    assert "".join(sources) == sentence * 100
    assert [len(source) for source in sources] == [24_399, 15_601]
