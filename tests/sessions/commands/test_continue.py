"""A reply that was stopped or cut goes on: the same message, a new turn, behind the text that it has."""

from __future__ import annotations

from typing import Unpack

import msgspec
import pytest
from redis.asyncio import Redis

from engine.messages import JsonObject
from engine.scripted import ScriptedEngine, Step, Thought, words_of
from sessions.errors import BadParams, Busy, Conflict, NotFound
from sessions.events import (
    Accepted,
    Cause,
    Delta,
    Done,
    Gap,
    Reason,
    Reasoning,
    Removed,
    Resumed,
    Snapshot,
)
from sessions.records import digest
from sessions.turn.message_request import (
    Continue,
    GenerationConfig,
    MessageRequest,
    Regenerate,
)
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, Options, eventually, filtering, serving
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.tool_round.sample_tools import BERN, TOOLS


async def cut(
    chat: Chat, shown: str = "One two", whole: str = "One two three four", ask: str = "Count!"
) -> Done:
    """A reply that is stopped behind what is shown."""
    chat.engine.script(whole)
    accepted = await chat.running(ask, shown)
    return await chat.stop(accepted.turn_id)


async def continue_reply(
    chat: Chat, reply_id: str, more: str = " three four", **options: Unpack[Options]
) -> Done:
    options["place"] = Continue(reply_id)
    return await chat.play("", *words_of(more), **options)


async def running_rest(
    chat: Chat, reply_id: str, shown: str = " three", **options: Unpack[Options]
) -> Accepted:
    """The rest of a reply, as far as this is shown."""
    chat.engine.script(" three four")
    options["place"] = Continue(reply_id)
    return await chat.running("", shown, **options)


async def test_a_stopped_reply_goes_on_as_the_same_message(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    before = (await chat.history()).messages
    done = await continue_reply(chat, first.message_id, system="Be brief.")
    accepted = chat.reader.of(Accepted)[-1]
    assert (accepted.continues, accepted.message_id) == (first.message_id, before[0].message_id)
    assert done.turn_id == accepted.turn_id != first.turn_id
    assert (done.message_id, done.reason, done.chars) == (first.message_id, Reason.STOP, 18)
    assert done.text_sha256 == digest("One two three four")
    deltas = [delta for delta in chat.reader.of(Delta) if delta.turn_id == done.turn_id]
    assert deltas[0].off == len("One two")
    assert engine.requests[-1].spec.continues
    assert chat.prompt() == ["Be brief.", "Count!", "One two"]  # the system prompt of now counts
    after = (await chat.history()).messages
    assert [one.message_id for one in after] == [one.message_id for one in before]
    assert (after[1].content, after[1].status, after[1].turn_id) == (
        "One two three four",
        "complete",
        done.turn_id,
    )
    assert after[1].created_at == before[1].created_at
    assert after[1].siblings == [first.message_id]
    page = await chat.sessions.conversations(chat.owner, limit=1, before=None)
    assert page.conversations[0].messages == 2
    assert continuous(chat.reader.events)
    await chat.exchange("And now?")
    assert chat.prompt()[1:] == ["Count!", "One two three four", "And now?"]


async def test_a_repeat_is_answered_as_the_first(chat: Chat) -> None:
    first = await cut(chat)
    accepted = await running_rest(chat, first.message_id, client_msg_id="again")
    early, late = Recorder(), Recorder()
    await chat.send("", place=Continue(first.message_id), client_msg_id="again", reader=early)
    (delta,) = early.of(Delta)
    assert (delta.off, delta.text) == (7, " three")
    done = await chat.finish(accepted.turn_id)
    repeated = await chat.send("", place=Continue(first.message_id), client_msg_id="again", reader=late)
    assert (repeated.turn_id, repeated.duplicate, repeated.continues) == (
        done.turn_id,
        True,
        first.message_id,
    )
    again = await late.next(Done)
    (delta,) = late.of(Delta)
    assert (delta.off, delta.text, again.text_sha256) == (7, " three four", done.text_sha256)
    with pytest.raises(Conflict):
        await chat.send("", place=Regenerate(first.message_id), client_msg_id="again")


@pytest.mark.parametrize(("seen_off", "kept"), [(13, "One two three"), (2, "One two")])
async def test_a_cancel_cuts_within_the_new_turn_and_not_before_it(
    chat: Chat, seen_off: int, kept: str
) -> None:
    first = await cut(chat)
    await running_rest(chat, first.message_id, " three four")
    done = await chat.stop(seen_off=seen_off)
    assert (done.chars, done.removed, done.text_sha256) == (len(kept), False, digest(kept))
    assert (await chat.messages())[1] == ("assistant", kept)
    assert chat.reader.withdrawn[done.turn_id] == len(kept)


@pytest.mark.parametrize("script", [(" three", " four"), (BERN, " and"), (" three", BERN, " and")])
async def test_a_rollback_restores_what_stood_before(chat: Chat, script: tuple[Step, ...]) -> None:
    """Calls are taken back, too."""
    await cut(chat)
    before = (await chat.history()).messages
    chat.engine.script(script)
    await chat.send("", place=Continue(before[1].message_id), tools=TOOLS)
    await eventually(lambda: len(chat.engine.requests) == 2)
    for _ in script[1:]:
        await chat.step()
    done = await chat.stop(rollback=True)
    assert (done.chars, done.removed, done.text_sha256) == (7, False, digest("One two"))
    assert (done.cancel and done.cancel.cause) is Cause.ROLLBACK
    assert (await chat.history()).messages == before
    assert (await continue_reply(chat, before[1].message_id)).reason is Reason.STOP
    assert (await chat.messages())[1] == ("assistant", "One two three four")
    assert continuous(chat.reader.events)


async def test_one_that_was_cancelled_before_it_was_accepted_takes_nothing(chat: Chat) -> None:
    await cut(chat)
    before = (await chat.history()).messages
    sending = chat.begin_send("", place=Continue(before[1].message_id))
    done = await chat.stop()
    assert await sending is None
    assert (done.chars, done.reason) == (7, Reason.CANCELLED)
    assert (await chat.history()).messages == before


async def test_what_it_added_can_be_taken_back_and_all_are_told(chat: Chat) -> None:
    first = await chat.play("Count!", Thought("Slowly."), "One", " two", " three", max_new_tokens=3)
    history = chat.sessions.storage.history
    before = await history.message(chat.keys, first.message_id)
    shown = (await chat.history()).messages
    assert before is not None
    assert (before.reasoning, before.content) == ("Slowly.", "One two")
    done = await continue_reply(chat, first.message_id, client_msg_id="more")
    second, late = Recorder(), Recorder()
    await chat.history(second)
    for _ in range(2):  # the second time, nothing is left of it
        await chat.take_back(done.turn_id)
        assert (await chat.history()).messages == shown
        assert await history.message(chat.keys, first.message_id) == before
    assert [removed.turn_id for removed in second.of(Removed)] == [done.turn_id]
    await chat.send("", place=Continue(first.message_id), client_msg_id="more", reader=late)
    assert (await late.next(Done)).removed


async def test_the_first_part_is_not_taken_back_from_under_the_second(chat: Chat) -> None:
    first = await cut(chat)
    second = await continue_reply(chat, first.message_id)
    with pytest.raises(Conflict, match="continued this reply"):
        await chat.take_back(first.turn_id)
    for done in (second, first):
        await chat.take_back(done.turn_id)
    assert await chat.messages() == []


@pytest.mark.parametrize("expired", [False, True])
async def test_who_comes_back_is_told_each_part_once(chat: Chat, store: Redis, *, expired: bool) -> None:
    first = await cut(chat)
    second = await continue_reply(chat, first.message_id, max_new_tokens=1)
    third = await continue_reply(chat, first.message_id, " four")
    assert (second.reason, third.message_id) == (Reason.LENGTH, first.message_id)
    assert await chat.messages() == [("user", "Count!"), ("assistant", "One two three four")]
    if expired:
        await store.delete(chat.keys.journal)
    late = Recorder()
    await chat.resume(late, 0)
    assert late.of(Gap) == []
    assert isinstance(late.events[0], Resumed)
    for done, off, text in ((first, 0, "One two"), (second, 7, " three"), (third, 13, " four")):
        parts = [delta for delta in late.of(Delta) if delta.turn_id == done.turn_id]
        assert (parts[0].off, "".join(part.text for part in parts)) == (off, text)
    assert [done.text_sha256 for done in late.of(Done)] == [
        digest(text) for text in ("One two", "One two three", "One two three four")
    ]
    assert [one.continues for one in late.of(Accepted)] == [None, first.message_id, first.message_id]
    assert continuous(late.events)


async def test_who_comes_back_to_one_that_was_taken_back_is_told_what_is_left(
    chat: Chat, store: Redis
) -> None:
    first = await cut(chat)
    second = await continue_reply(chat, first.message_id)
    await chat.take_back(second.turn_id)
    third = await continue_reply(chat, first.message_id, " 3 4")
    await store.delete(chat.keys.journal)
    late = Recorder()
    await chat.resume(late, 0)
    ends = {done.turn_id: (done.chars, done.text_sha256) for done in late.of(Done)}
    assert ends[second.turn_id] == (7, digest("One two"))
    assert ends[third.turn_id] == (11, digest("One two 3 4"))
    assert late.text(second.turn_id) == ""
    assert late.text(third.turn_id) == " 3 4"


async def test_a_running_one_is_shown_whole_and_its_wait_is_told_before_its_first_text(chat: Chat) -> None:
    first = await cut(chat)
    chat.engine.prefill_tokens = 1
    chat.engine.script(" three four")
    accepted = await chat.send("", place=Continue(first.message_id))
    await eventually(lambda: len(chat.engine.requests) == 2)
    await chat.step()
    wait = (await chat.shown(Recorder())).wait
    assert (wait and wait.state) == "prefill"
    while chat.reader.text(accepted.turn_id) != " three":
        await chat.step()
    late, gapped = Recorder(), Recorder()
    shown = (await chat.history(late)).messages[1]
    assert (shown.content, shown.status, shown.turn_id) == ("One two three", "running", accepted.turn_id)
    await chat.step()
    assert late.of(Delta)[0].off == len("One two three")
    await chat.resume(gapped, 0, epoch="another")
    assert gapped.of(Snapshot)[0].text == "One two three four"


async def test_only_replies_that_were_cut_and_that_nothing_follows_go_on(chat: Chat) -> None:
    """The rest of a reply has neither a format nor a call that it must make."""
    empty = await chat.send("Hello?")
    done = await chat.stop(empty.turn_id)
    with pytest.raises(Conflict, match="This reply is empty"):
        await chat.send("", place=Continue(done.message_id))
    first = await cut(chat)
    question = (await chat.history()).messages[0].message_id
    with pytest.raises(BadParams, match="must name an assistant"):
        await chat.send("", place=Continue(question))
    with pytest.raises(NotFound):
        await chat.send("", place=Continue("msg_none"))
    send = MessageRequest(
        client_msg_id="f", conversation_id=CONVERSATION_ID, content="", place=Continue(first.message_id)
    )
    for generation, field in (
        (GenerationConfig(format=JsonObject()), "format"),
        (GenerationConfig(tool_choice="required"), "tool_choice"),
    ):
        refused = await chat.sessions.turns.send(chat.owner, chat.reader, send, generation)
        assert isinstance(refused, BadParams)
        assert refused.field == field
    assert chat.engine.facts is not None
    chat.engine._life.loaded(msgspec.structs.replace(chat.engine.facts, features=("tools",)))
    with pytest.raises(BadParams, match="`continue` can't be followed") as unable:
        await chat.send("", place=Continue(first.message_id))
    assert unable.value.field == "continue"
    await chat.wait_idle()
    assert (await chat.messages())[-1] == ("assistant", "One two")
    await chat.exchange("And now?")
    with pytest.raises(Conflict, match="continued after this reply"):
        await chat.send("", place=Continue(first.message_id))


async def test_a_reply_that_calls_or_called_does_not_go_on(chat: Chat, engine: ScriptedEngine) -> None:
    done = await chat.play("Weather?", "I look.", BERN, tools=TOOLS)
    with pytest.raises(Busy):
        await chat.send("", place=Continue(done.message_id))
    await chat.result(done.open[0], "Rain.")
    end = await chat.follow("It rains.")
    engine.script(("I look.", BERN, "And"))
    accepted = await chat.running("Weather?", "I look.", tools=TOOLS)
    await chat.step()
    stopped = await chat.stop(accepted.turn_id)
    for reply, why in ((done, "calls tools"), (end, "is complete"), (stopped, "calls tools")):
        with pytest.raises(Conflict, match=why):
            await chat.send("", place=Continue(reply.message_id))


async def test_another_branch_goes_on_and_is_the_active_one(chat: Chat) -> None:
    first = await cut(chat)
    await chat.exchange("", "Uno.", place=Regenerate(first.message_id))
    await continue_reply(chat, first.message_id)
    page = await chat.history()
    assert [message.content for message in page.messages] == ["Count!", "One two three four"]
    assert page.messages[1].sibling_count == 2


async def test_it_interrupts_and_goes_on_with_what_was_kept(chat: Chat) -> None:
    chat.engine.script("One two three four")
    accepted = await chat.running("Count!", "One two")
    reply_id = chat.live_conversation.turns[0].record.reply_id
    chat.engine.script(" three four")
    await chat.running("", " three four", place=Continue(reply_id), on_busy="interrupt")
    chat.engine.step()
    done = await chat.reader.next(Done, count=2)
    assert chat.reader.of(Done)[0].turn_id == accepted.turn_id
    assert (done.message_id, done.chars) == (reply_id, 18)


async def test_it_waits_behind_a_reply_on_another_branch(chat: Chat) -> None:
    first = await cut(chat)
    chat.engine.script("Uno dos")
    await chat.running("", "Uno", place=Regenerate(first.message_id))
    chat.engine.script(" three four")
    accepted = await chat.enqueue("", place=Continue(first.message_id))
    assert (accepted.queue_position, accepted.continues) == (1, first.message_id)
    with pytest.raises(NotFound, match="being written"):
        await chat.send("", place=Continue(first.message_id), on_busy="enqueue")
    done = await chat.finish(accepted.turn_id)
    assert (done.message_id, done.chars) == (first.message_id, 18)
    assert (await chat.messages())[1] == ("assistant", "One two three four")
    assert continuous(chat.reader.events)


@pytest.mark.parametrize("rollback", [False, True])
async def test_one_that_waits_and_is_cancelled_takes_nothing(chat: Chat, *, rollback: bool) -> None:
    first = await cut(chat)
    chat.engine.script("Uno dos")
    await chat.running("", "Uno", place=Regenerate(first.message_id))
    accepted = await chat.enqueue("", place=Continue(first.message_id))
    done = await chat.stop(accepted.turn_id, rollback=rollback)
    assert (done.turn_id, done.chars, done.removed) == (accepted.turn_id, 7, False)
    await chat.stop()
    assert (await chat.history(leaf=first.message_id)).messages[1].content == "One two"


@pytest.mark.parametrize("rollback", [False, True])
async def test_messages_wait_behind_it(chat: Chat, engine: ScriptedEngine, *, rollback: bool) -> None:
    """Where it is rolled back, they stay behind the reply as it was."""
    first = await cut(chat)
    going = await running_rest(chat, first.message_id)
    accepted = await chat.enqueue("And now?")
    assert accepted.parent_id == first.message_id
    await (chat.stop(going.turn_id, rollback=True) if rollback else chat.finish(going.turn_id))
    await eventually(lambda: len(engine.requests) == 3)
    contents = ["Count!", "One two" if rollback else "One two three four", "And now?"]
    assert chat.prompt() == contents
    await chat.stop()
    assert (await chat.texts())[:3] == contents


async def test_what_was_thought_goes_on(chat: Chat, engine: ScriptedEngine) -> None:
    engine.script((Thought("Let me "), Thought("see. "), "One"))
    await chat.running("Count!")
    await chat.step()
    first = await chat.stop()
    assert (first.chars, first.reasoning_chars) == (0, 7)
    done = await chat.play("", Thought("see. "), "One", place=Continue(first.message_id))
    requested = engine.requests[-1].messages[-1]
    assert (requested.role, requested.content, requested.reasoning) == ("assistant", "", "Let me ")
    parts = [part for part in chat.reader.of(Reasoning) if part.turn_id == done.turn_id]
    assert (parts[0].off, done.reasoning_chars, done.chars) == (7, 12, 3)
    reply = (await chat.history()).messages[1]
    assert (reply.content, reply.reasoning) == ("One", "Let me see. ")


async def test_a_reply_to_results_goes_on(chat: Chat, engine: ScriptedEngine) -> None:
    done = await chat.play("Weather?", "I look.", BERN, tools=TOOLS)
    await chat.result(done.open[0], "Rain.")
    engine.script(("It", " rains."))
    await eventually(lambda: len(engine.requests) == 2)
    await chat.step()
    first = await chat.stop()
    second = await chat.play("", " rains.", place=Continue(first.message_id), tools=TOOLS)
    accepted = chat.reader.of(Accepted)[-1]
    assert (accepted.message_id, accepted.continues) == (done.message_id, first.message_id)
    roles = [message.role for message in engine.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert (await chat.messages())[-1] == ("assistant", "It rains.")
    await chat.take_back(second.turn_id)
    assert (await chat.messages())[-1] == ("assistant", "It")


async def test_a_reply_that_goes_on_may_call(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat, "I", "I look.", ask="Weather?")
    done = await chat.play("", " look.", BERN, place=Continue(first.message_id), tools=TOOLS)
    assert (done.reason, done.message_id) == (Reason.TOOLS, first.message_id)
    await chat.result(done.open[0], "Rain.")
    end = await chat.follow("It rains.")
    assert not engine.requests[-1].spec.continues
    assert chat.prompt() == ["Weather?", "I look.", "Rain."]
    page = await chat.history()
    assert [message.content for message in page.messages] == ["Weather?", "I look.", "It rains."]
    assert page.messages[-1].message_id == end.message_id
    late = Recorder()
    await chat.resume(late, 0)
    assert continuous(late.events)


async def test_filters_read_both_sides_of_the_seam_as_one(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, filters=filtering(outgoing=["darn"])) as chat:
        done = await chat.play("Hm?", "Oh da", "y.", max_new_tokens=1)
        assert (done.reason, done.chars) == (Reason.LENGTH, 5)
        bad = await chat.play("", "rn it!", place=Continue(done.message_id))
        assert (bad.reason, bad.chars) == (Reason.FILTERED, 5)
        assert (await chat.messages())[1] == ("assistant", "Oh da")
        good = await chat.play("", "y.", place=Continue(done.message_id))
        assert (good.chars, good.text_sha256) == (7, digest("Oh day."))


async def test_one_that_nobody_knows_of_leaves_the_reply_as_it_stood(chat: Chat, other: Chat) -> None:
    """The store took it in, and its sender was told that it did not answer. The branch that was active is so still."""
    first = await cut(chat)
    await chat.exchange("", "Uno.", place=Regenerate(first.message_id))
    before = (await chat.history()).messages
    going = await running_rest(chat, first.message_id, "", client_msg_id="more")
    other.sessions.storage.unsettled.add(going.turn_id)
    await chat.lose_lease()
    await other.reap()
    assert (await other.history()).messages == before
    other.engine.script(" three four")
    again = await other.send("", place=Continue(first.message_id), client_msg_id="more")
    assert (again.duplicate, again.turn_id == going.turn_id) == (False, False)
    await eventually(lambda: len(other.engine.requests) == 1)
    done = await other.finish(again.turn_id)
    assert done.text_sha256 == digest("One two three four")
    chat.engine.step()
