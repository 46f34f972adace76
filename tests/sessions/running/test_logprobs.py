"""What is told of a reply's tokens comes to its reader with their text, through filters and while it is late."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.messages import ChosenToken, Message, Params, TokenLogprob
from engine.scripted import ScriptedEngine
from sessions.events import Reason
from sessions.filters.chain import ReleasedText
from sessions.records import Owner
from sessions.running.ephemeral import (
    MAX_PIECE_LOGPROBS,
    MAX_WAITING_BYTES,
    EphemeralReply,
    EphemeralRequest,
    Piece,
    ReplyBuffer,
    TextPiece,
)
from sessions.service import Sessions
from tests.sessions.chat_driver import eventually, filtering, serving

ALICE = Owner("anonymous", "alice")
HELLO = (Message("user", "Hello!"),)


def text_and_tokens(piece: Piece | None) -> tuple[str, list[str]]:
    """A text, and the names of the tokens that came with it."""
    assert isinstance(piece, TextPiece)
    return piece.text, [one.chosen.token for one in piece.logprobs]


async def start_reply(sessions: Sessions, engine: ScriptedEngine, params: Params) -> EphemeralReply:
    """A turn that the engine has."""
    engine.script("One two darn.")
    reply = await sessions.ephemeral.answer(ALICE, EphemeralRequest(HELLO, params))
    await eventually(lambda: bool(engine.requests))
    return reply


async def test_a_late_reader_gets_what_belongs_to_the_text_that_it_takes(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    reply = await start_reply(sessions, engine, Params(top_logprobs=1))
    engine.step(2)
    assert text_and_tokens(await anext(reply)) == ("One two", ["One", " two"])
    engine.step(2)
    assert text_and_tokens(await anext(reply)) == (" darn.", [" darn."])


async def test_who_does_not_ask_is_told_nothing(sessions: Sessions, engine: ScriptedEngine) -> None:
    reply = await start_reply(sessions, engine, Params())
    engine.step(4)
    assert text_and_tokens(await anext(reply)) == ("One two darn.", [])


async def test_a_token_that_a_filter_ends_is_not_told(store: Redis, engine: ScriptedEngine) -> None:
    """Its space left, and its name would tell the rest."""
    async with serving(store, engine, filters=filtering(outgoing=["darn"])) as chat:
        reply = await start_reply(chat.sessions, engine, Params(top_logprobs=0))
        engine.step(4)
        pieces = [text_and_tokens(piece) async for piece in reply]
    assert "".join(text for text, _ in pieces) == "One two "
    assert [name for _, some in pieces for name in some] == ["One", " two"]
    assert reply.ended.reason is Reason.FILTERED


async def test_no_more_tokens_are_told_at_once_than_may_be(
    sessions: Sessions, engine: ScriptedEngine
) -> None:
    engine.script(["x"] * (MAX_PIECE_LOGPROBS + 2))
    reply = await sessions.ephemeral.answer(ALICE, EphemeralRequest(HELLO, Params(top_logprobs=20)))
    await eventually(lambda: bool(engine.requests))
    engine.step(MAX_PIECE_LOGPROBS + 3)
    await eventually(lambda: reply.done is not None)
    pieces = [text_and_tokens(piece) async for piece in reply]
    assert [(len(text), len(some)) for text, some in pieces] == [
        (MAX_PIECE_LOGPROBS + 2, MAX_PIECE_LOGPROBS),
        (0, 2),
    ]


async def test_a_reader_that_is_too_late_is_cut_off(sessions: Sessions, engine: ScriptedEngine) -> None:
    engine.script(["x" * 16_384] * 100)
    reply = await sessions.ephemeral.answer(ALICE, EphemeralRequest(HELLO))
    cut: list[str] = []
    reply.cut_off = lambda: cut.append("off")
    await eventually(lambda: bool(engine.requests))
    engine.step(100)
    await eventually(lambda: reply.done is not None)
    assert (cut, reply.ended.reason) == (["off"], Reason.CANCELLED)
    assert [piece async for piece in reply] == []


def test_what_is_told_of_tokens_counts_for_what_may_wait() -> None:
    likely = TokenLogprob("x", -1.0, b"x")
    token = ChosenToken(likely, (likely,) * 20, 1)
    waiting = ReplyBuffer()
    for _ in range(1000):
        waiting.add_text(ReleasedText("x", 1, logprobs=(token,)))
    assert waiting.bytes > MAX_WAITING_BYTES
    assert sum(len(text_and_tokens(piece)[1]) for piece in iter(waiting.take, None)) == 1000
    assert waiting.bytes == 0
