"""A `client_msg_id` makes one generation, however often and from wherever it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scripted import ScriptedEngine
from sessions.events import Accepted, Delta, Done
from sessions.records import digest
from sessions.turn.message_request import Append, Edit, Regenerate, digest_of
from tests.sessions.chat_driver import Chat
from tests.sessions.recorder import Recorder


async def test_from_two_sockets_at_once(chat: Chat, engine: ScriptedEngine) -> None:
    second = Recorder()
    one = chat.begin_send("Hello?", client_msg_id="one")
    two = chat.begin_send("Hello?", client_msg_id="one", reader=second)
    assert [await one, await two] == [None, None]
    await chat.step(second)
    engine.step(20)
    done = await second.next(Done)
    assert second.text(done.turn_id) == engine._reply
    (first,), (again,) = chat.reader.of(Accepted), second.of(Accepted)
    assert (again.duplicate, again.epoch) == (True, first.epoch)
    assert len(engine.requests) == 1


async def test_behind_a_refused_one_it_is_taken_itself(chat: Chat) -> None:
    """A refused send leaves nothing; the one behind it is the first."""
    long = "word " * 300
    one = chat.begin_send(long, client_msg_id="one")
    two = chat.begin_send("Hello?", client_msg_id="one")
    assert await one is not None
    assert await two is None
    assert not chat.reader.of(Accepted)[-1].duplicate


@pytest.mark.parametrize("ended", [False, True])
async def test_of_a_turn_that_was_taken_back(chat: Chat, engine: ScriptedEngine, *, ended: bool) -> None:
    """Its end says so: there is no text of it any more."""
    if ended:
        done = await chat.exchange("Hello?", "Hello there.", client_msg_id="one")
        await chat.take_back(done.turn_id)
    else:
        await chat.running("Hello?", "This", client_msg_id="one")
        done = await chat.stop(rollback=True)
    second = Recorder()
    assert (await chat.send("Hello?", client_msg_id="one", reader=second)).duplicate
    again = await second.next(Done)
    assert (again.turn_id, again.removed) == (done.turn_id, True)
    assert second.of(Delta) == []
    assert (await chat.messages(), len(engine.requests)) == ([], 1)


async def test_of_an_ended_turn_while_another_runs_or_the_engine_is_away(chat: Chat) -> None:
    """What is known needs no model: the reply is there at once, and interrupts none."""
    done = await chat.exchange("Hello?", "Hello there.", client_msg_id="one")
    await chat.running("And now?", "This")
    assert (await chat.send("Hello?", client_msg_id="one", on_busy="interrupt")).duplicate
    assert chat.reader.of(Done) == [done, done]
    assert len(chat.live_conversation.blocking()) == 1
    chat.engine.fail()
    await chat.wait_idle()
    assert (await chat.send("Hello?", client_msg_id="one")).duplicate
    assert chat.reader.of(Done)[-1] == done


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
ids = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
requests = st.one_of(
    st.tuples(words, st.just(Append())),
    st.tuples(words, st.builds(Edit, ids)),
    st.tuples(st.just(""), st.builds(Regenerate, ids)),
)


@given(requests, requests)
def test_two_requests_have_one_digest_only_where_they_are_the_same(
    one: tuple[str, Append | Edit | Regenerate], other: tuple[str, Append | Edit | Regenerate]
) -> None:
    assert (digest_of(*one) == digest_of(*other)) == (one == other)


@given(words, st.none() | ids)
def test_a_message_is_the_same_whatever_it_answers(content: str, parent_id: str | None) -> None:
    """It may be sent again without the parent that it had, when another branch is active."""
    assert digest_of(content, Append(parent_id)) == digest(content)
