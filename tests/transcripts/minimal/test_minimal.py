"""Clients that were written from PROTOCOL.md alone, against a service whose engine moves by hand."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.chaos.proxy import Proxy, proxy

CLIENTS = sorted((Path(__file__).parent / "clients").glob("*.py"))
COUNT = ["One", " two", " three", " four", " five."]
FAMILY = "👩‍👩‍👧"  # five code points, eight units of UTF-16
EMOJI = ["a👍", FAMILY, "e\u0301", " 谢谢", " b"]
"""As code points: 2, 7, 9, 12, 14."""


class Client(Protocol):
    """What a client can do; `stop` and `wait` return the reason of the reply's end."""

    reply: str
    messages: list[tuple[str, str]]

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def drop(self) -> None: ...
    async def reconnect(self) -> None: ...
    async def send(self, text: str) -> None: ...
    async def resend(self) -> None: ...
    async def wait(self) -> str: ...
    async def wait_for(self, characters: int) -> None: ...
    async def stop(self, shown: int | None = None) -> str: ...


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - neither the engine nor a foreign client reports changes
        await asyncio.sleep(0.01)


class Scene:
    """A service, the way to it, and clients of one module."""

    service: InProcessService
    way: Proxy
    ann: Client

    def __init__(self, module: Any, folder: Path, running: AsyncExitStack, clients: AsyncExitStack) -> None:
        self.module, self._folder, self._running, self._clients = module, folder, running, clients

    @property
    def engine(self) -> ScriptedEngine:
        return self.service.engine

    async def start(self) -> None:
        """Start the service, after the end of the one before."""
        await self._running.aclose()
        engine = ScriptedEngine(by_hand=True, context_tokens=200)
        self.service = await self._running.enter_async_context(serving(self._folder, engine))

    async def client(self, client_id: str) -> Client:
        client: Client = self.module.Client(f"ws://127.0.0.1:{self.way.port}/v1/ws", client_id)
        await client.open()
        self._clients.push_async_callback(client.close)
        return client

    async def begin(self, client: Client, text: str, reply: list[str], tokens: int) -> None:
        """Send a message and show the first tokens of its reply."""
        self.engine.script(reply)
        await client.send(text)
        await self.made(tokens)
        await client.wait_for(len("".join(reply[:tokens])))

    async def chat(self, client: Client, text: str, reply: list[str]) -> None:
        await self.begin(client, text, reply, len(reply))
        self.engine.step()
        assert await client.wait() == "stop"
        assert client.reply == "".join(reply)

    async def made(self, tokens: int) -> None:
        """Let the engine make so many tokens, once it has the request."""
        await eventually(self.is_generating)
        self.engine.step(tokens)

    def is_generating(self) -> bool:
        statistics = self.engine.statistics()
        return statistics.running + statistics.queued > 0

    @asynccontextmanager
    async def watching(self, client_id: str = "ann") -> AsyncIterator[tuple[Socket, Frame]]:
        """A connection of the same user, and the history of its one conversation."""
        async with self.service.socket({"client_id": client_id}) as socket:
            (row,) = (await socket.ask(type="conversations"))["conversations"]
            yield socket, await socket.ask(type="history", conversation_id=row["conversation_id"])

    async def assert_agrees(self, client: Client, expected: list[str], client_id: str = "ann") -> None:
        """The client, the history and the journal have these messages, and each message has one turn with one end."""
        async with self.watching(client_id) as (socket, page):
            stored = [(message["role"], message["content"]) for message in page["messages"]]
            where = {"conversation_id": page["conversation_id"], "epoch": page["epoch"], "after_seq": 0}
            await socket.send(type="resume", **where)
            events = [await socket.next("accepted")]
            while events[-1]["seq"] < page["seq"]:
                events.append(await socket.next())
        assert stored == list(zip(["user", "assistant"] * len(expected), expected, strict=False))
        assert client.messages == stored
        assert client.reply == expected[-1]
        kinds = [event["type"] for event in events]
        assert kinds.count("accepted") == kinds.count("done") == len(expected) / 2
        assert (
            len({event["client_msg_id"] for event in events if "client_msg_id" in event}) == len(expected) / 2
        )

    def prompt(self) -> list[str]:
        """The latest one."""
        return [message.content for message in self.engine.requests[-1].messages]


@pytest.fixture(params=CLIENTS, ids=lambda path: path.stem)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """`ann` is connected over a network that the test can disturb."""
    spec = importlib.util.spec_from_file_location(request.param.stem, request.param)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with AsyncExitStack() as running, AsyncExitStack() as clients:
        made = Scene(module, tmp_path, running, clients)
        await made.start()
        made.way = await clients.enter_async_context(proxy(made.service.port))
        made.ann = await made.client("ann")
        yield made


async def test_two_turns_are_streamed_whole(scene: Scene) -> None:
    await scene.begin(scene.ann, "Count.", COUNT, 2)
    assert scene.ann.reply == "One two"
    scene.engine.step(4)
    assert await scene.ann.wait() == "stop"
    await scene.chat(scene.ann, "Emoji?", EMOJI)
    assert scene.prompt() == ["Count.", "".join(COUNT), "Emoji?"]
    await scene.assert_agrees(scene.ann, ["Count.", "".join(COUNT), "Emoji?", "".join(EMOJI)])


@pytest.mark.parametrize(
    ("shown", "kept"),
    [(None, "a👍" + FAMILY + "e\u0301"), (2, "a👍"), (4, "a👍"), (8, "a👍" + FAMILY), (0, "")],
    ids=["all", "a part", "half an emoji", "half a letter", "nothing"],
)
async def test_a_stopped_reply_ends_at_what_was_shown(scene: Scene, shown: int | None, kept: str) -> None:
    await scene.begin(scene.ann, "Emoji?", EMOJI, 3)
    assert await scene.ann.stop(shown) == "cancelled"
    assert scene.ann.reply == kept
    await scene.chat(scene.ann, "Why?", COUNT)
    answered = ["Emoji?", kept] if kept else ["Emoji?"]
    assert [text for text in scene.prompt() if text] == [*answered, "Why?"]
    await scene.assert_agrees(scene.ann, ["Emoji?", kept, "Why?", "".join(COUNT)])


async def test_text_on_its_way_is_not_kept_by_a_stop(scene: Scene) -> None:
    """What the service has sent and the reader has not seen: offsets of another unit reach into it."""
    await scene.begin(scene.ann, "Emoji?", EMOJI, 2)
    async with scene.watching() as (other, _):
        scene.way.hold_answers()
        scene.engine.step(3)
        frame = await other.next("delta")
        while frame["off"] + len(frame["text"]) < len("".join(EMOJI)):
            frame = await other.next("delta")
        stopping = asyncio.create_task(scene.ann.stop())
        await other.next("done")
    scene.way.flow()
    assert await stopping == "cancelled"
    await scene.assert_agrees(scene.ann, ["Emoji?", "a👍" + FAMILY])


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "on its way"])
async def test_a_stop_after_the_end_changes_nothing(scene: Scene, is_known: bool) -> None:  # noqa: FBT001
    if is_known:
        await scene.chat(scene.ann, "Count.", COUNT)
        assert await scene.ann.stop() == "stop"
    else:
        await scene.begin(scene.ann, "Count.", COUNT, 2)
        async with scene.watching() as (other, _):
            scene.way.hold_answers()
            scene.engine.step(4)
            await other.next("done")
            received = scene.way.requests
            stopping = asyncio.create_task(scene.ann.stop())
            await eventually(lambda: scene.way.requests > received)
            scene.way.flow()
        assert await stopping == "stop"
    await scene.assert_agrees(scene.ann, ["Count.", "".join(COUNT)])


async def test_a_refused_message_leaves_no_trace(scene: Scene) -> None:
    await scene.chat(scene.ann, "Count.", COUNT)
    with pytest.raises(scene.module.ChatError) as refused:
        await scene.ann.send("much " * 300)
    assert refused.value.code == "context_overflow"
    await scene.chat(scene.ann, "Emoji?", EMOJI)
    assert scene.way.connections == 1
    await scene.assert_agrees(scene.ann, ["Count.", "".join(COUNT), "Emoji?", "".join(EMOJI)])


@pytest.mark.parametrize("away", [0, 2, 5], ids=["at once", "later", "after the end"])
async def test_a_lost_connection_loses_and_repeats_nothing(scene: Scene, away: int) -> None:
    """Neither what was on its way nor what was made meanwhile."""
    await scene.chat(scene.ann, "Count.", COUNT)
    await scene.begin(scene.ann, "Emoji?", EMOJI, 1)
    scene.way.hold_answers()
    scene.engine.step()
    await scene.ann.drop()
    scene.way.flow()
    scene.engine.step(away)
    await scene.ann.reconnect()
    scene.engine.step(5 - away)
    assert await scene.ann.wait() == "stop"
    await scene.chat(scene.ann, "Again.", COUNT)
    emoji, count = "".join(EMOJI), "".join(COUNT)
    await scene.assert_agrees(scene.ann, ["Count.", count, "Emoji?", emoji, "Again.", count])


@pytest.mark.parametrize("lost", ["message", "answer"])
async def test_a_message_that_is_sent_again_counts_once(scene: Scene, lost: str) -> None:
    await scene.chat(scene.ann, "Emoji?", EMOJI)
    scene.engine.script(COUNT)
    if lost == "message":
        scene.way.stall()
    else:
        scene.way.hold_answers()
    received = scene.way.requests
    sending = asyncio.create_task(scene.ann.send("Count."))
    if lost == "answer":
        await scene.made(1)
    else:
        await eventually(lambda: scene.way.requests > received)
    await scene.ann.drop()
    scene.way.cut()
    scene.way.flow()
    await scene.ann.reconnect()
    await scene.ann.resend()
    await scene.made(6)
    assert await scene.ann.wait() == "stop"
    await scene.ann.resend()
    (failure,) = await asyncio.gather(sending, return_exceptions=True)
    assert not isinstance(failure, scene.module.ChatError)  # it may report the lost connection
    await scene.assert_agrees(scene.ann, ["Emoji?", "".join(EMOJI), "Count.", "".join(COUNT)])
    assert len(scene.engine.requests) == 2


async def test_a_restarted_server_has_what_was_shown(scene: Scene) -> None:
    await scene.begin(scene.ann, "Count.", COUNT, 2)
    await scene.start()
    scene.way.lead_to(scene.service.port)
    await scene.ann.reconnect()
    assert await scene.ann.wait() == "interrupted"
    await scene.chat(scene.ann, "Emoji?", EMOJI)
    await scene.assert_agrees(scene.ann, ["Count.", "One two", "Emoji?", "".join(EMOJI)])


async def test_another_user_sees_nothing(scene: Scene) -> None:
    bob = await scene.client("bob")
    await scene.chat(scene.ann, "Count.", COUNT)
    await scene.chat(bob, "Emoji?", EMOJI)
    assert scene.prompt() == ["Emoji?"]
    await scene.assert_agrees(bob, ["Emoji?", "".join(EMOJI)], "bob")
    await scene.assert_agrees(scene.ann, ["Count.", "".join(COUNT)])
