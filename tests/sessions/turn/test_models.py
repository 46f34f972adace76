"""Two models of engines that the test moves: what dies is stood in for, and what happened is told and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from sessions.events import Accepted, Done, Reason, Status
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn.message_request import Regenerate
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually
from tests.sessions.recorder import Recorder
from tests.sessions.store.test_journal_expiry import expired


class TwoModels:
    """A big model, a small one behind it, and a chat whose `engine` is the big one's."""

    def __init__(self, chat: Chat, big: ScriptedEngine, small: ScriptedEngine) -> None:
        self.chat = chat
        self.big = big
        self.small = small

    async def fallen_back(self, shown: str = "") -> Accepted:
        """A turn whose model died, as far as the other one's reply is shown."""
        accepted = await self.chat.running("Hello?")
        self.big.die(revive=False)
        await eventually(lambda: len(self.small.requests) == 1)
        while self.chat.reader.text(accepted.turn_id) != shown:
            self.small.step()
            await eventually(lambda: bool(self.chat.reader.text(accepted.turn_id)))
        return accepted


def models_of(big: ScriptedEngine, small: ScriptedEngine) -> ServedModels:
    return ServedModels(
        [
            ServedModel(name="big", engine=big, fallbacks=("small",)),
            ServedModel(name="small", engine=small),
        ]
    )


@pytest.fixture
async def two_models(store: Redis, owner: Owner, reader: Recorder, sessions: Sessions) -> TwoModels:
    big, small = sessions.choice._models.models
    assert isinstance(big.engine, ScriptedEngine)
    assert isinstance(small.engine, ScriptedEngine)
    return TwoModels(Chat(sessions, big.engine, owner, reader), big.engine, small.engine)


@pytest.fixture
async def sessions(store: Redis) -> AsyncIterator[Sessions]:
    big, small = (ScriptedEngine(by_hand=True, context_tokens=window) for window in (200, 60))
    floor = Sessions(client=store, engine=models_of(big, small), policy=Policy(ttl_s=3600, max_turns=100))
    async with floor.running(alone=True):
        yield floor
    assert floor.statistics().turns == 0


async def test_who_stands_in_is_asked_again_as_any_model(two_models: TwoModels, reader: Recorder) -> None:
    await two_models.fallen_back()
    two_models.small.die()
    await eventually(lambda: len(two_models.small.requests) == 2)
    two_models.small.step(20)
    assert (await reader.next(Done)).model == "small"
    assert [status.state for status in reader.of(Status)] == ["fallback", "retrying"]


async def test_an_engine_that_dies_is_stood_in_for_and_it_is_kept_who_wrote(
    two_models: TwoModels, store: Redis, reader: Recorder
) -> None:
    """Also where it has left the journal. Another reply asks the first model again."""
    await two_models.fallen_back("This")
    two_models.small.step(20)
    done = await reader.next(Done)
    assert [(status.state, status.model) for status in reader.of(Status)] == [("fallback", "small")]
    assert (done.reason, done.model, done.requested_model) == (Reason.STOP, "small", "big")
    assert two_models.small.requests[0].fallbacks == ()
    await expired(store, two_models.chat)
    late = Recorder()
    await two_models.chat.resume(late, 0)
    (accepted,), (done,) = late.of(Accepted), late.of(Done)
    assert (accepted.model, done.model, done.requested_model) == ("big", "small", "big")
    two_models.big.revive()
    await two_models.chat.running("", place=Regenerate(done.message_id))
    assert len(two_models.big.requests) == 2


@pytest.mark.parametrize(("shown", "expected"), [("This", ("small", "big")), ("", ("big", None))])
async def test_a_dead_replica_has_told_the_store_who_wrote(
    two_models: TwoModels, store: Redis, owner: Owner, shown: str, expected: tuple[str, str | None]
) -> None:
    """With the first text: what was told of by nobody but a status is not known to the others."""
    await two_models.fallen_back(shown)
    second = Sessions(
        client=store,
        engine=models_of(ScriptedEngine(by_hand=True), ScriptedEngine(by_hand=True)),
        policy=Policy(ttl_s=3600, max_turns=100),
    )
    async with second.running(alone=False):
        await two_models.chat.lose_lease()
        assert await second.reaper.reap() == 1
        reader = Recorder()
        page = (await second.history(owner, reader, CONVERSATION_ID, limit=9)).page
        reply = page.messages[-1]
        turn = await second.storage.history.turn(two_models.chat.keys, reply.turn_id)
        second.disconnect(reader)
    two_models.chat.cancel()
    assert turn is not None
    assert turn.done is not None
    assert reply.model == turn.done.model
    assert (turn.done.model, turn.done.requested_model) == expected


async def test_the_longest_window_is_known_once_all_are(two_models: TwoModels, sessions: Sessions) -> None:
    assert sessions.choice.longest_window == 200
    two_models.small._facts = None  # type: ignore[assignment]
    assert sessions.choice.longest_window is None
