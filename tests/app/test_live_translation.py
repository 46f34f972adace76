"""Live translation over real sockets: for clients that name the feature, with bad input, and for many readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import midstream
from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from tests.app.event_source import path_of
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

READERS = 1_000
AT_ONCE = 50
ANN = {"client_id": "ann", "features": ["interpret"]}


async def begin(socket: Socket, **fields: object) -> Frame:
    """Start an interpretation that sends whole sentences; return `accepted`."""
    requested = {"client_msg_id": "i", "source": "en", "target": "de", "publish_policy": "segment"}
    return await socket.ask(type="interpret.start", **requested | fields)


async def grow(socket: Socket, off: int, text: str, **fields: object) -> Frame:
    """Extend the source; return its `source_ack`, or the error."""
    await socket.send(type="source", off=off, text=text, ref="s", **fields)
    while (frame := await socket.next()).get("ref") != "s":
        pass
    return frame


async def test_a_source_is_translated_while_it_grows(running: InProcessService) -> None:
    for reply in ("Eins.", "Zwei."):
        running.engine.script(reply)
    async with running.socket(ANN) as socket:
        assert "interpret" in socket.ready["features"]
        accepted = await begin(socket)
        assert accepted["interprets"] == {"source": "en", "target": "de"}
        await grow(socket, 0, "One. ")
        delta = await socket.next("delta")
        assert (delta["text"], delta["src_off"]) == ("Eins.", 4)
        await socket.send(type="source", off=5, text="Two.", final=True)
        frames = await socket.until("done")
        page = await socket.ask(type="history")
    assert [frame["type"] for frame in frames if "seq" in frame] == ["source", "delta", "done"]
    assert (frames[-1]["reason"], frames[-1]["chars"]) == ("stop", 11)
    assert [message["content"] for message in page["messages"]] == ["One. Two.", "Eins. Zwei."]
    assert page["messages"][0]["interprets"] == accepted["interprets"]


async def test_a_title_that_stands_for_languages_says_so_until_it_is_another(
    running: InProcessService,
) -> None:
    """In the list, in a search and behind a link; a chat with the same words as its title has none."""
    languages = {"source": "en", "target": "de"}
    chat = {"client_msg_id": "m", "conversation_id": "chat"}
    async with running.socket(ANN) as socket, httpx.AsyncClient(base_url=running.url) as client:
        await begin(socket)
        await grow(socket, 0, "One.", final=True)
        await socket.until("done")
        await socket.send(type="send", content="en → de", **chat)
        await socket.until("done")
        title = (await socket.ask(type="conversations"))["conversations"][-1]["title"]
        for requested, rows in (
            ({"type": "conversations"}, "conversations"),
            ({"type": "search", "query": "→"}, "hits"),
        ):
            answer = await socket.ask(**requested)
            titles = [(row["title"], row.get("interprets")) for row in answer[rows]]
            assert titles == [("en → de", None), (title, languages)]
        share = (await socket.ask(type="share", conversation_id="default"))["share_id"]
        assert (await client.get(f"/v1/shares/{share}")).json()["interprets"] == languages
        await socket.ask(type="rename", conversation_id="default", title=title)
        listed = (await socket.ask(type="conversations"))["conversations"]
        assert not any("interprets" in row for row in listed)
        assert "interprets" not in (await client.get(f"/v1/shares/{share}")).json()


async def test_who_does_not_name_it_sees_the_translation_without_a_hole(running: InProcessService) -> None:
    running.engine.script("Eins.")
    async with running.socket(ANN) as ann, running.socket({"client_id": "ann"}) as plain:
        await begin(ann)
        await plain.ask(type="history")
        await grow(ann, 0, "One.", final=True)
        frames = await plain.until("done")
        refused = await plain.ask(type="interpret.start", client_msg_id="j", target="de")
        assert (refused["code"], "`interpret`" in refused["message"]) == ("bad_params", True)
        assert (await plain.ask(type="source", off=0, text="One."))["code"] == "bad_params"
    assert [frame["type"] for frame in frames] == ["delta", "done"]
    assert frames[0]["first_seq"] == 2  # it covers the source's events


async def test_bad_sources_are_refused_in_words_and_nobody_else_notices(running: InProcessService) -> None:
    async with running.socket(ANN) as ann, running.socket({"client_id": "bob"}) as bob:
        assert (await grow(ann, 0, "One."))["code"] == "not_found"
        await begin(ann)
        assert (await grow(ann, 0, "x" * 32_000))["chars"] == 32_000
        refusals = [
            (32_000, "y" * 32_000, False, "content_too_long"),
            (32_001, "y", False, "conflict"),
            (0, "yx", False, "conflict"),
            (0, "x" * 10, True, "conflict"),
        ]
        for off, text, final, code in refusals:
            refused = await grow(ann, off, text, final=final)
            assert (refused["type"], refused["code"]) == ("error", code)
            assert refused["message"][0].isupper()
        assert (await grow(ann, -1, ""))["code"] == "bad_frame"  # deltas may come before it
        await bob.send(type="send", client_msg_id="b", content="Hello?")
        assert (await bob.until("done"))[-1]["reason"] == "stop"
        await grow(ann, 32_000, "", final=True)
        done = await ann.next("done")  # one endless word, in pieces of bounded length
    assert done["reason"] == "stop"
    requested = [request.messages[0].content for request in running.engine.requests]
    assert max(map(len, requested)) == len("Translate into German: ") + 400


async def test_an_empty_source_is_an_empty_translation(running: InProcessService) -> None:
    async with running.socket(ANN) as socket:
        await begin(socket)
        await grow(socket, 0, "  \n ", final=True)
        done = await socket.next("done")
    assert (done["reason"], done["chars"], done["usage"]["generated_tokens"]) == ("stop", 0, 0)


async def test_scripts_may_be_mixed(running: InProcessService) -> None:
    for reply in ("A.", "B.", "C.", "D."):
        running.engine.script(reply)
    async with running.socket(ANN) as socket:
        await begin(socket)
        await grow(socket, 0, "你好。Hello! नमस्ते। 👩🏽‍🚀", final=True)
        done = await socket.next("done")
        page = await socket.ask(type="history")
    assert done["reason"] == "stop"
    assert page["messages"][1]["content"] == "A. B. C. D."


class Reader:
    """One of many readers of a conversation, who costs the test only its socket."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self.frames: list[Frame] = []

    async def until(self, kind: str) -> None:
        """Read up to a frame of a type."""
        while not self.frames or self.frames[-1]["type"] != kind:
            line = await self._stream.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                self.frames.append(json.loads(line[len(b"data: ") :]))

    def texts(self) -> tuple[str, str]:
        """Return the source and the translation, from the page of history and the later events."""
        source, target = (message["content"] for message in self.frames[0]["messages"])
        source += "".join(frame["text"] for frame in self.frames if frame["type"] == "source")
        return source, target + "".join(frame["text"] for frame in self.frames if frame["type"] == "delta")


@asynccontextmanager
async def subtitles(running: InProcessService) -> AsyncIterator[Reader]:
    """A reader of the event stream who has the page of history."""
    stream, writer = await asyncio.open_connection("127.0.0.1", running.port)
    path = f"{path_of()}?client_id=ann&features=interpret"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n\r\n".encode())
    try:
        assert b" 200 " in await stream.readline()
        reader = Reader(stream)
        await reader.until("history")
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.timeout(300)
async def test_subtitles_reach_many_readers_and_a_late_one_sees_the_whole(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, read_rate=1000.0, max_client_connections=READERS + 10) as running,
        running.socket(ANN) as ann,
        AsyncExitStack() as stack,
    ):
        for reply in ("Eins.", "Zwei."):
            running.engine.script(reply)
        await begin(ann)
        readers: list[Reader] = []
        while len(readers) < READERS:
            some = (stack.enter_async_context(subtitles(running)) for _ in range(AT_ONCE))
            readers += await asyncio.gather(*some)
        await grow(ann, 0, "One. ")
        await ann.next("delta")
        late = await stack.enter_async_context(subtitles(running))
        assert late.texts() == ("One. ", "Eins.")
        await grow(ann, 5, "Two.", final=True)
        await asyncio.gather(*(reader.until("done") for reader in (*readers, late)))
        assert {reader.texts() for reader in (*readers, late)} == {("One. Two.", "Eins. Zwei.")}


async def test_the_python_client_speaks_and_reads(running: InProcessService) -> None:
    for reply in ("Eins.", "Zwei."):
        running.engine.script(reply)
    async with midstream.connect(running.url, features=["interpret"]) as client:
        interpretation = await client.interpret("de", source="en", publish_policy="segment")
        await interpretation.append("One. ")
        assert await anext(aiter(interpretation)) == "Eins."
        with pytest.raises(midstream.Refused, match="32000 are allowed"):
            await interpretation.append("x" * 32_000)
        await interpretation.append("Two.")
        done = await interpretation.finish()
        assert (interpretation.reply.text, done["reason"]) == ("Eins. Zwei.", "stop")
        started = await client.interpret("de", publish_policy="segment", conversation_id="cut")
        await started.append("Thr")
        await started.cancel()
        cut = await started.reply.wait()
        running.engine.script("Drei.")
        again = await client.continue_interpretation(cut["message_id"], started.source, conversation_id="cut")
        await again.append("ee.")
        await again.finish()
        assert again.reply.text == "Drei."


async def test_the_model_that_the_conversation_has_is_judged_before_anything_ends(tmp_path: Path) -> None:
    plain, able = ScriptedEngine(by_hand=True, features=()), ScriptedEngine()
    models: Any = ServedModels(
        [ServedModel(name="able", engine=able), ServedModel(name="plain", engine=plain)]
    )
    async with serving(tmp_path, models) as running, running.socket(ANN) as socket:
        await socket.send(type="send", client_msg_id="1", content="Hello!", params={"model": "plain"})
        await socket.next("accepted")
        refused = await begin(socket, on_busy="interrupt")
        assert (refused["code"], "can't interpret" in refused["message"]) == ("bad_params", True)
        assert (await socket.ask(type="history"))["messages"][-1]["status"] == "running"
        accepted = await begin(socket, on_busy="interrupt", model="able")
        while accepted["type"] != "accepted":
            accepted = await socket.next()
        await socket.send(type="cancel")
        await socket.next("done")
