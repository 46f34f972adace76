"""A conversation that is spoken with the Python client: into a real service, which hears by PocketSphinx and speaks by espeak-ng."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

import midstream
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.voice_client import GRAMMAR, RATE, SILENCE, synthesize
from tests.midstream.conftest import connections_of, cut

pytestmark = [
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
    pytest.mark.asyncio(loop_scope="module"),
]
REPLY = "One, two, three, four, five, six, seven, eight, nine and ten."
BY_HAND = {"turn_detection": {"type": "none"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    options: dict[str, Any] = {"speech": "both", "speech_recognizer": GRAMMAR, "message_rate": 1000}
    folder = tmp_path_factory.mktemp("spoken")
    async with serving(folder, ScriptedEngine(reply=REPLY), **options) as service:
        yield service


@asynccontextmanager
async def speaking(
    running: InProcessService, place: str, **how: Any
) -> AsyncIterator[tuple[midstream.Client, midstream.SpokenConversation]]:
    async with (
        midstream.connect(running.url, client_id=place, features=("audio",)) as client,
        client.speak(place, **({"input_rate": RATE, "output_rate": RATE} | how)) as conversation,
    ):
        yield client, conversation


async def question(text: str) -> bytes:
    return SILENCE[:16000] + await synthesize(text) + SILENCE


async def next_reply(conversation: midstream.SpokenConversation, words: int = 0) -> midstream.SpokenReply:
    """The next reply that is heard, of which so many words were played."""
    async for event in conversation:
        if isinstance(event, midstream.Sound):
            until_ms = event.reply.marks[words - 1].end_ms if words else 0
            await event.reply.played(min(event.end_ms, until_ms))
            if event.end_ms >= until_ms:
                return event.reply
    raise AssertionError("no reply is heard")


async def play_reply(conversation: midstream.SpokenConversation) -> tuple[midstream.SpokenReply, bytes]:
    """The next reply, played at once, and all of its sound."""
    whole = b""
    async for event in conversation:
        if isinstance(event, midstream.Sound):
            whole += event.samples
            await event.reply.played(event.end_ms)
            if event.last:
                await event.reply.wait()
                return event.reply, whole
    raise AssertionError("no reply is heard")


def history_texts(history: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in history]


async def test_what_is_said_is_heard_and_its_reply_comes_as_sound(running: InProcessService) -> None:
    async with speaking(running, "whole") as (client, conversation):
        assert conversation.voice is not None
        await conversation.send(await question("What did you say last?"))
        events = []
        async for event in conversation:
            events.append(event)
            if isinstance(event, midstream.SpokenReply):
                break
        assert events[0] == midstream.Speech("started", events[0].at_ms)  # type: ignore[union-attr]
        final = [event for event in events if isinstance(event, midstream.Transcript) and event.final]
        assert [event.text for event in final] == ["what did you say last"]
        assert conversation.is_answering
        reply, sound = await play_reply(conversation)
        assert reply.done is not None
        assert (reply.text, reply.done["reason"]) == (REPLY, "stop")
        words = [REPLY[mark.off : mark.off + mark.len] for mark in reply.marks]
        assert " ".join(words) == REPLY
        assert reply.marks[-1].end_ms <= len(sound) / 2 / RATE * 1000
        assert not conversation.is_answering
        assert history_texts(await client.history("whole")) == ["what did you say last", REPLY]


async def test_a_cancel_keeps_the_words_that_were_played(running: InProcessService) -> None:
    async with speaking(running, "cancel") as (client, conversation):
        await conversation.send(await question("Count from one to ten."))
        reply = await next_reply(conversation, words=2)
        assert (await reply.cancel())["already"] is False
        done = await reply.wait()
        assert (done["reason"], reply.text, done["cancel"]["precision"]) == ("cancelled", "One, two,", "word")
        assert history_texts(await client.history("cancel")) == ["count from 1 to 10", "One, two,"]


async def test_speech_over_a_reply_cuts_it_at_the_word_that_was_played(running: InProcessService) -> None:
    async with speaking(running, "barge") as (client, conversation):
        await conversation.send(await question("Count from one to ten."))
        first = await next_reply(conversation, words=3)
        await conversation.send(await question("What did you say last?"))
        second = await next_reply(conversation)
        while second is first:
            second = await next_reply(conversation)
        assert (await first.wait())["reason"] == "cancelled"
        assert first.text == "One, two, three,"
        expected = ["count from 1 to 10", "One, two, three,", "what did you say last"]
        assert history_texts(await client.history("barge"))[:3] == expected


async def test_who_leaves_has_heard_what_was_played(running: InProcessService) -> None:
    async with speaking(running, "leave") as (_, conversation):
        await conversation.send(await question("Count from one to ten."))
        await next_reply(conversation, words=4)
    async with midstream.connect(running.url, client_id="leave") as client:
        assert history_texts(await client.history("leave")) == [
            "count from 1 to 10",
            "One, two, three, four,",
        ]


async def test_what_is_committed_is_said_and_what_is_cleared_is_not(running: InProcessService) -> None:
    async with speaking(running, "hand", output_rate=None, **BY_HAND) as (client, conversation):
        assert conversation.voice is None
        await conversation.send(await synthesize("Count from one to ten."))
        await conversation.clear()
        await conversation.send(await synthesize("What did you say last?"))
        await conversation.commit()
        replies = [event async for event in _until_a_reply(conversation)]
        (reply,) = [event for event in replies if isinstance(event, midstream.SpokenReply)]
        assert "".join([text async for text in reply]) == REPLY  # without sound it is a text
        assert history_texts(await client.history("hand")) == ["what did you say last", REPLY]


async def _until_a_reply(
    conversation: midstream.SpokenConversation,
) -> AsyncIterator[object]:
    async for event in conversation:
        yield event
        if isinstance(event, midstream.SpokenReply):
            return


async def test_a_text_is_told_as_far_as_it_was_spoken(running: InProcessService) -> None:
    async with speaking(running, "words") as (_, conversation):
        await conversation.send(await question("Count from one to ten."))
        reply = await next_reply(conversation, words=2)
        async for _ in reply:
            if reply.text == REPLY:
                break
        assert reply.spoken(-1) == ""
        assert reply.spoken(reply.marks[1].start_ms) == "One, two,"
        await reply.cancel()
        await reply.wait()
        assert reply.spoken(0) == "One, two,"  # what is kept


async def test_a_reply_goes_on_over_a_lost_connection_from_what_was_played(running: InProcessService) -> None:
    async with speaking(running, "lost") as (client, conversation):
        await conversation.send(await question("Count from one to ten."))
        reply = await next_reply(conversation)
        await reply.played(300)
        await client.ping()
        cut(running, but=[one for one in connections_of(running) if one.client.client_id != "lost"])
        events = []
        async for event in conversation:
            events.append(event)
            if isinstance(event, midstream.SpokenReply):
                break
        reported = [event for event in events if isinstance(event, midstream.Connection)]
        assert [one.is_lost for one in reported] == [True, False]
        assert conversation.is_listening
        assert event is reply
        assert reply.from_ms == 300
        again, _ = await play_reply(conversation)
        assert again is reply
        assert (reply.text, reply.done and reply.done["reason"]) == (REPLY, "stop")
        await conversation.send(await question("What did you say last?"))
        assert (await play_reply(conversation))[0].text == REPLY


async def test_a_reply_that_another_program_began_is_heard_on(running: InProcessService) -> None:
    reconnecting = midstream.Reconnecting(timeout_s=0, grace_s=10)
    hello: dict[str, Any] = {"client_id": "back", "features": ("audio",), "reconnecting": reconnecting}
    how = {"input_rate": RATE, "output_rate": RATE}
    async with midstream.connect(running.url, **hello) as client, client.speak("back", **how) as conversation:
        await conversation.send(await question("Count from one to ten."))
        reply = await next_reply(conversation)
        await reply.played(300)
        await client.ping()
        await client.close()  # without a word, as a program that is killed
        with pytest.raises(midstream.Disconnected):
            await play_reply(conversation)
    async with midstream.connect(running.url, **hello) as client, client.speak("back", **how) as conversation:
        again, _ = await play_reply(conversation)
        assert (again.turn_id, again.text) == (reply.turn_id, REPLY)


async def test_another_connection_that_speaks_ends_this_one(running: InProcessService) -> None:
    async with speaking(running, "elsewhere") as (_, conversation), speaking(running, "elsewhere"):
        assert [event async for event in conversation] == []
        assert not conversation.is_active  # a lost connection must not take it back


async def test_what_the_server_can_not_do_is_told_among_what_happens(running: InProcessService) -> None:
    async with speaking(running, "refused", model="none-of-these") as (_, conversation):
        await conversation.send(await question("Count from one to ten."))
        async for event in conversation:
            if isinstance(event, midstream.Refused):
                assert event.code == "model_not_found"
                break


async def test_one_conversation_is_spoken_at_a_time(running: InProcessService) -> None:
    async with speaking(running, "one") as (client, _):
        with pytest.raises(midstream.ClientError, match="already has a spoken conversation"):
            async with client.speak("two"):
                pass


async def test_a_client_that_names_no_feature_is_told_so(running: InProcessService) -> None:
    async with midstream.connect(running.url) as client:
        with pytest.raises(midstream.Refused, match="`audio`"):
            async with client.speak():
                pass


async def test_a_message_that_is_typed_meanwhile_is_answered_as_text(running: InProcessService) -> None:
    async with speaking(running, "typed") as (client, conversation):
        reply = await client.send("Count.", conversation_id="typed")
        assert (await reply.wait())["reason"] == "stop"
        assert reply.text == REPLY
        assert not conversation.is_answering
