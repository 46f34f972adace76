"""What is told of a reply's tokens comes to its reader with their text, through filters and while it is late."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.messages import Message, Params
from engine.scripted import ScriptedEngine
from sessions.ephemeral import Ask
from sessions.ephemeral_reply import EphemeralReply
from sessions.events import Reason
from sessions.filters import Filters
from sessions.list_filter import ListFilter, Lists
from sessions.policy import Policy
from sessions.records import Owner
from sessions.service import Sessions
from tests.sessions.chat import eventually

ALICE = Owner("anonymous", "alice")
HELLO = (Message("user", "Hello!"),)


def names(reply: EphemeralReply) -> list[str]:
    return [one.chosen.token for one in reply.logprobs]


async def begun(sessions: Sessions, engine: ScriptedEngine, asked: Params) -> EphemeralReply:
    """A turn that the engine has."""
    engine.script("One two darn.")
    reply = await sessions.answer(ALICE, Ask(HELLO, asked))
    await eventually(lambda: bool(engine.requests))
    return reply


async def test_a_late_reader_gets_what_belongs_to_the_text_that_it_takes(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await begun(sessions, engine, Params(top_logprobs=1))
    engine.step(2)
    assert (await anext(reply), names(reply)) == ("One two", ["One", " two"])
    engine.step(2)
    assert (await anext(reply), names(reply)) == (" darn.", [" darn."])


async def test_who_does_not_ask_is_told_nothing(sessions: Sessions, engine: ScriptedEngine) -> None:
    reply = await begun(sessions, engine, Params())
    engine.step(4)
    assert (await anext(reply), names(reply)) == ("One two darn.", [])


async def test_a_token_that_a_filter_ends_is_not_told(store: Redis, engine: ScriptedEngine) -> None:
    """Its space left, and its name would tell the rest."""
    nothing, words = Lists([], [], max_chars=128), Lists(["darn"], [], max_chars=128)
    filters = Filters([ListFilter(incoming=nothing, outgoing=words)])
    floor = Sessions(client=store, engine=engine, policy=Policy(ttl_s=60, max_turns=9, filters=filters))
    async with floor.running(alone=True):
        reply = await begun(floor, engine, Params(top_logprobs=0))
        engine.step(4)
        told = [(text, names(reply)) async for text in reply]
    assert "".join(text for text, _ in told) == "One two "
    assert [name for _, some in told for name in some] == ["One", " two"]
    assert reply.ended.reason is Reason.FILTERED
