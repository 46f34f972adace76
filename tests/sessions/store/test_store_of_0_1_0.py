"""A conversation as version 0.1.0 wrote it: it is read, goes on, and is told again; nothing of it is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from sessions.errors import Conflict
from sessions.events import Accepted, Done, Gap, Removed
from tests.sessions.chat import Chat
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.store.test_compaction import compacted, told, whole

KEPT: dict[str, Any] = json.loads((Path(__file__).parent / "store_of_0_1_0.json").read_text())
SAID = [("user", "Hello?"), ("assistant", "Hello to you."), ("user", "Cut me."), ("assistant", "This rep")]


@pytest.fixture(autouse=True)
async def kept(store: Redis, chat: Chat) -> None:
    """The conversation, as a 0.1.0 left it."""
    await store.hset(chat.keys.conversation, mapping=KEPT["hash"])
    for seq, event in KEPT["journal"]:
        await store.xadd(chat.keys.journal, {"event": event}, id=seq)


async def test_its_history_is_read(chat: Chat) -> None:
    assert await chat.told() == SAID


async def test_it_is_told_from_its_oldest_event_on(chat: Chat) -> None:
    events = await told(chat, 0)
    assert whole(events, 0)
    assert [len([one for one in events if isinstance(one, kind)]) for kind in (Accepted, Done, Removed)] == [
        3,
        3,
        1,
    ]


async def test_a_message_that_it_has_is_answered_once_more(chat: Chat, reader: Recorder) -> None:
    accepted = await chat.send("Hello?", client_msg_id="one")
    assert accepted.duplicate
    assert reader.text(accepted.turn_id) == "Hello to you."
    with pytest.raises(Conflict):
        await chat.send("Something else.", client_msg_id="two")


async def test_it_goes_on(chat: Chat, reader: Recorder) -> None:
    await chat.history()
    await chat.exchange("And now?", "Now.")
    assert continuous(reader.events)
    assert await chat.told() == [*SAID, ("user", "And now?"), ("assistant", "Now.")]
    assert whole(await told(chat, 0), 0)


async def test_its_own_events_leave_with_the_first_compaction_and_are_a_gap_then(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    """What this version wrote is told; what came before that is in the history."""
    await chat.exchange("And now?", "Now.")
    begun = reader.of(Accepted)[-1].seq
    await compacted(store, chat)
    gap = (await told(chat, begun - 2))[0]
    assert isinstance(gap, Gap)
    assert gap.min_seq == begun
    assert whole(await told(chat, begun - 1), begun - 1)
    assert await chat.told() == [*SAID, ("user", "And now?"), ("assistant", "Now.")]


async def test_its_newest_exchange_can_be_taken_back(chat: Chat) -> None:
    record = await chat.sessions.parts.base.storage.history.turn_of(chat.keys, "two")
    assert record is not None
    await chat.sessions.take_back(chat.owner, "room", record.turn_id)
    assert await chat.told() == SAID[:2]
