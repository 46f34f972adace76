"""A reply that was stopped or cut goes on: the same message, a new turn, behind the text that it has."""

from __future__ import annotations

import msgspec
import pytest
from redis.asyncio import Redis

from engine.messages import JsonObject
from engine.scripted import ScriptedEngine, Step, Thought
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
    ToolCall,
)
from sessions.records import digest
from sessions.turn.message_request import (
    Append,
    Continue,
    GenerationConfig,
    MessageRequest,
    Placement,
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
    ended = len(chat.reader.of(Done))
    accepted = await chat.running(ask, shown)
    chat.cancel(accepted.turn_id)
    done = await chat.reader.next(Done, count=ended + 1)
    await chat.wait_idle()
    return done


async def continue_reply(
    chat: Chat,
    reply_id: str,
    more: str = " three four",
    *,
    client_msg_id: str = "",
    system: str | None = None,
    max_new_tokens: int = 100,
) -> Done:
    chat.engine.script(more)
    requests = len(chat.engine.requests)
    options: Options = {
        "place": Continue(reply_id),
        "client_msg_id": client_msg_id,
        "max_new_tokens": max_new_tokens,
    }
    if system is not None:
        options["system"] = system
    accepted = await chat.send("", **options)
    await eventually(lambda: len(chat.engine.requests) > requests)
    return await chat.finish(accepted.turn_id)


async def queued(chat: Chat, content: str = "", *, place: Placement) -> Accepted:
    """Sends behind the running reply, and waits until it is accepted there."""
    count = len(chat.reader.of(Accepted)) + 1
    chat.begin_send(content, place=place, on_busy="enqueue")
    return await chat.reader.next(Accepted, count=count)


async def test_a_stopped_reply_goes_on_as_the_same_message(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    before = (await chat.history()).messages
    done = await continue_reply(chat, first.message_id)
    await chat.wait_idle()
    accepted = chat.reader.of(Accepted)[-1]
    assert (accepted.continues, accepted.message_id) == (first.message_id, before[0].message_id)
    assert done.turn_id == accepted.turn_id != first.turn_id
    assert (done.message_id, done.reason, done.chars) == (first.message_id, Reason.STOP, 18)
    assert done.text_sha256 == digest("One two three four")
    deltas = [delta for delta in chat.reader.of(Delta) if delta.turn_id == done.turn_id]
    assert deltas[0].off == len("One two")
    requested = engine.requests[-1]
    assert requested.spec.continues
    assert [(one.role, one.content) for one in requested.messages] == [
        ("user", "Count!"),
        ("assistant", "One two"),
    ]
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


async def test_it_goes_on_as_often_as_it_is_cut(chat: Chat) -> None:
    first = await cut(chat)
    second = await continue_reply(chat, first.message_id, max_new_tokens=1)
    assert second.reason is Reason.LENGTH
    third = await continue_reply(chat, first.message_id, " four five")
    assert (third.message_id, third.chars) == (first.message_id, len("One two three four five"))
    assert await chat.messages() == [("user", "Count!"), ("assistant", "One two three four five")]


async def test_the_conversation_goes_on_behind_it(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    await continue_reply(chat, first.message_id)
    await chat.exchange("And now?")
    contents = [message.content for message in engine.requests[-1].messages]
    assert contents == ["Count!", "One two three four", "And now?"]


async def test_a_repeat_is_answered_as_the_first(chat: Chat) -> None:
    first = await cut(chat)
    done = await continue_reply(chat, first.message_id, client_msg_id="again")
    await chat.wait_idle()
    late = Recorder()
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
    chat.leave(late)


async def test_a_repeat_of_a_running_one_is_told_what_came_so_far(chat: Chat) -> None:
    first = await cut(chat)
    chat.engine.script(" three four")
    await chat.running("", " three", place=Continue(first.message_id), client_msg_id="again")
    late = Recorder()
    await chat.send("", place=Continue(first.message_id), client_msg_id="again", reader=late)
    (delta,) = late.of(Delta)
    assert (delta.off, delta.text) == (7, " three")
    chat.cancel()
    await chat.wait_idle()
    chat.leave(late)


async def test_a_cancel_cuts_within_the_new_turn(chat: Chat) -> None:
    first = await cut(chat)
    chat.engine.script(" three four")
    accepted = await chat.running("", " three four", place=Continue(first.message_id))
    chat.cancel(accepted.turn_id, seen_off=len("One two three"))
    done = await chat.reader.next(Done, count=2)
    assert (done.chars, done.text_sha256) == (13, digest("One two three"))
    await chat.wait_idle()
    assert (await chat.messages())[1] == ("assistant", "One two three")
    assert chat.reader.withdrawn[accepted.turn_id] == 13


async def test_no_cancel_reaches_into_what_stood_before(chat: Chat) -> None:
    first = await cut(chat)
    chat.engine.script(" three four")
    accepted = await chat.running("", " three", place=Continue(first.message_id))
    chat.cancel(accepted.turn_id, seen_off=2)
    done = await chat.reader.next(Done, count=2)
    assert (done.chars, done.removed) == (7, False)
    await chat.wait_idle()
    assert (await chat.messages())[1] == ("assistant", "One two")


async def test_a_rollback_restores_what_stood_before(chat: Chat) -> None:
    await cut(chat)
    before = (await chat.history()).messages
    chat.engine.script(" three four")
    accepted = await chat.running("", " three", place=Continue(before[1].message_id))
    chat.cancel(accepted.turn_id, rollback=True)
    done = await chat.reader.next(Done, count=2)
    assert (done.chars, done.removed, done.text_sha256) == (7, False, digest("One two"))
    assert done.cancel is not None
    assert done.cancel.cause is Cause.ROLLBACK
    await chat.wait_idle()
    assert (await chat.history()).messages == before
    await continue_reply(chat, before[1].message_id)
    assert (await chat.messages())[1] == ("assistant", "One two three four")
    assert continuous(chat.reader.events)


async def test_a_message_that_rolls_it_back_stands_behind_what_stood_before(
    chat: Chat, engine: ScriptedEngine
) -> None:
    first = await cut(chat)
    chat.engine.script(" three four")
    await chat.running("", " three", place=Continue(first.message_id))
    await chat.exchange("And now?", "Now.", on_busy="rollback", parent_id=first.message_id)
    assert [content for _, content in await chat.messages()] == ["Count!", "One two", "And now?", "Now."]
    assert [message.content for message in engine.requests[-1].messages] == ["Count!", "One two", "And now?"]


async def test_one_that_was_cancelled_before_it_was_accepted_takes_nothing(chat: Chat) -> None:
    await cut(chat)
    before = (await chat.history()).messages
    sending = chat.begin_send("", place=Continue(before[1].message_id))
    chat.cancel()
    assert await sending is None
    done = await chat.reader.next(Done, count=2)
    assert (done.chars, done.reason) == (7, Reason.CANCELLED)
    await chat.wait_idle()
    assert (await chat.history()).messages == before


async def test_what_it_added_can_be_taken_back_and_all_are_told(chat: Chat) -> None:
    await cut(chat)
    before = (await chat.history()).messages
    done = await continue_reply(chat, before[1].message_id, client_msg_id="more")
    await chat.wait_idle()
    second = Recorder()
    await chat.history(second)
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id)
    assert second.of(Removed)[0].turn_id == done.turn_id
    assert (await chat.history()).messages == before
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id)  # nothing is left of it
    late = Recorder()
    await chat.send("", place=Continue(before[1].message_id), client_msg_id="more", reader=late)
    assert (await late.next(Done)).removed
    chat.leave(late)
    chat.leave(second)


async def test_what_is_taken_back_leaves_the_reply_as_the_model_wrote_it(chat: Chat) -> None:
    first = await chat.play("Count!", Thought("Slowly."), "One", " two", " three", max_new_tokens=3)
    await chat.wait_idle()
    history = chat.sessions.parts.storage.history
    before = await history.message(chat.keys, first.message_id)
    assert before is not None
    assert (before.reasoning, before.content) == ("Slowly.", "One two")
    second = await continue_reply(chat, first.message_id)
    await chat.wait_idle()
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, second.turn_id)
    assert await history.message(chat.keys, first.message_id) == before


async def test_the_first_part_is_not_taken_back_from_under_the_second(chat: Chat) -> None:
    first = await cut(chat)
    second = await continue_reply(chat, first.message_id)
    await chat.wait_idle()
    with pytest.raises(Conflict, match="continued this reply"):
        await chat.sessions.take_back(chat.owner, CONVERSATION_ID, first.turn_id)
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, second.turn_id)
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, first.turn_id)
    assert await chat.messages() == []


@pytest.mark.parametrize("compacted", [False, True])
async def test_who_comes_back_is_told_each_part_once(chat: Chat, store: Redis, *, compacted: bool) -> None:
    first = await cut(chat)
    second = await continue_reply(chat, first.message_id, max_new_tokens=1)
    third = await continue_reply(chat, first.message_id, " four")
    await chat.wait_idle()
    if compacted:
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
    chat.leave(late)


async def test_who_comes_back_to_one_that_was_taken_back_is_told_what_is_left(
    chat: Chat, store: Redis
) -> None:
    first = await cut(chat)
    second = await continue_reply(chat, first.message_id)
    await chat.wait_idle()
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, second.turn_id)
    third = await continue_reply(chat, first.message_id, " 3 4")
    await chat.wait_idle()
    await store.delete(chat.keys.journal)
    late = Recorder()
    await chat.resume(late, 0)
    ends = {done.turn_id: (done.chars, done.text_sha256) for done in late.of(Done)}
    assert ends[second.turn_id] == (7, digest("One two"))
    assert ends[third.turn_id] == (11, digest("One two 3 4"))
    assert late.text(second.turn_id) == ""
    assert late.text(third.turn_id) == " 3 4"
    chat.leave(late)


async def test_a_running_one_is_shown_whole(chat: Chat) -> None:
    first = await cut(chat)
    chat.engine.script(" three four")
    accepted = await chat.running("", " three", place=Continue(first.message_id))
    late = Recorder()
    page = await chat.history(late)
    shown = page.messages[1]
    assert (shown.content, shown.status, shown.turn_id) == ("One two three", "running", accepted.turn_id)
    await chat.step()
    assert late.of(Delta)[0].off == len("One two three")
    gapped = Recorder()
    await chat.resume(gapped, 0, epoch="another")
    assert gapped.of(Snapshot)[0].text == "One two three four"
    chat.cancel()
    await chat.wait_idle()
    chat.leave(late)
    chat.leave(gapped)


async def test_a_wait_is_told_before_its_first_text(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    engine.prefill_tokens = 1
    engine.script(" three")
    await chat.send("", place=Continue(first.message_id))
    await eventually(lambda: len(engine.requests) == 2)
    await chat.step()
    late = Recorder()
    shown = await chat.shown(late, limit=50)
    assert shown.wait is not None
    assert shown.wait.state == "prefill"
    chat.cancel()
    await chat.wait_idle()
    chat.leave(late)


async def test_an_empty_reply_does_not_go_on(chat: Chat) -> None:
    accepted = await chat.send("Hello?")
    chat.cancel(accepted.turn_id)
    done = await chat.reader.next(Done)
    await chat.wait_idle()
    with pytest.raises(Conflict, match="This reply is empty"):
        await chat.send("", place=Continue(done.message_id))


async def test_a_reply_that_something_follows_does_not_go_on(chat: Chat) -> None:
    first = await cut(chat)
    await chat.exchange("And now?")
    await chat.wait_idle()
    with pytest.raises(Conflict, match="continued after this reply"):
        await chat.send("", place=Continue(first.message_id))


async def test_only_replies_that_are_there_go_on(chat: Chat) -> None:
    await cut(chat)
    question = (await chat.history()).messages[0].message_id
    with pytest.raises(BadParams, match="must name an assistant"):
        await chat.send("", place=Continue(question))
    with pytest.raises(NotFound):
        await chat.send("", place=Continue("msg_none"))


async def test_another_branch_goes_on_and_is_the_active_one(chat: Chat) -> None:
    first = await cut(chat)
    await chat.exchange("", "Uno.", place=Regenerate(first.message_id))
    await chat.wait_idle()
    await continue_reply(chat, first.message_id)
    await chat.wait_idle()
    page = await chat.history()
    assert [message.content for message in page.messages] == ["Count!", "One two three four"]
    assert page.messages[1].sibling_count == 2


async def test_a_running_reply_makes_it_busy(chat: Chat) -> None:
    first = await cut(chat)
    await chat.running("", place=Regenerate(first.message_id))
    with pytest.raises(Busy):
        await chat.send("", place=Continue(first.message_id))
    chat.cancel()
    await chat.wait_idle()


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
    accepted = await queued(chat, place=Continue(first.message_id))
    assert (accepted.queue_position, accepted.continues) == (1, first.message_id)
    with pytest.raises(NotFound, match="being written"):
        await chat.send("", place=Continue(first.message_id), on_busy="enqueue")
    chat.engine.step(3)
    await chat.reader.next(Done, count=2)
    await eventually(lambda: len(chat.engine.requests) == 3)
    done = await chat.finish(accepted.turn_id)
    await chat.wait_idle()
    assert (done.message_id, done.chars) == (first.message_id, 18)
    assert (await chat.messages())[1] == ("assistant", "One two three four")
    assert continuous(chat.reader.events)


@pytest.mark.parametrize("rollback", [False, True])
async def test_one_that_waits_and_is_cancelled_takes_nothing(chat: Chat, *, rollback: bool) -> None:
    first = await cut(chat)
    chat.engine.script("Uno dos")
    await chat.running("", "Uno", place=Regenerate(first.message_id))
    accepted = await queued(chat, place=Continue(first.message_id))
    chat.cancel(accepted.turn_id, rollback=rollback)
    done = await chat.reader.next(Done, count=2)
    assert (done.turn_id, done.chars, done.removed) == (accepted.turn_id, 7, False)
    chat.cancel()
    await chat.wait_idle()
    assert (await chat.history(leaf=first.message_id)).messages[1].content == "One two"


async def test_messages_wait_behind_it(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    engine.script(" three four")
    await chat.running("", " three", place=Continue(first.message_id))
    accepted = await queued(chat, "And now?", place=Append())
    assert accepted.parent_id == first.message_id
    await chat.finish(chat.reader.of(Accepted)[1].turn_id)
    await eventually(lambda: len(engine.requests) == 3)
    contents = [message.content for message in engine.requests[-1].messages]
    assert contents == ["Count!", "One two three four", "And now?"]
    chat.cancel()
    await chat.wait_idle()


async def test_messages_that_wait_behind_one_that_is_rolled_back_stay_behind_the_reply(
    chat: Chat, engine: ScriptedEngine
) -> None:
    first = await cut(chat)
    engine.script(" three four")
    going = await chat.running("", " three", place=Continue(first.message_id))
    await queued(chat, "And now?", place=Append())
    chat.cancel(going.turn_id, rollback=True)
    await eventually(lambda: len(engine.requests) == 3)
    assert [message.content for message in engine.requests[-1].messages] == ["Count!", "One two", "And now?"]
    chat.cancel()
    await chat.wait_idle()
    assert [content for _, content in await chat.messages()][:3] == ["Count!", "One two", "And now?"]


async def test_an_engine_that_is_lost_leaves_what_came(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    engine.script(" three four")
    accepted = await chat.running("", " three", place=Continue(first.message_id))
    engine.die()
    done = await chat.finish(accepted.turn_id)
    assert (done.reason, done.chars) == (Reason.INTERRUPTED, 13)
    await chat.wait_idle()
    await continue_reply(chat, first.message_id, " four")
    assert (await chat.messages())[1] == ("assistant", "One two three four")


async def test_what_was_thought_goes_on(chat: Chat, engine: ScriptedEngine) -> None:
    engine.script((Thought("Let me "), Thought("see. "), "One"))
    accepted = await chat.send("Count!")
    await eventually(lambda: len(engine.requests) == 1)
    await chat.step()
    chat.cancel(accepted.turn_id)
    first = await chat.reader.next(Done)
    assert (first.chars, first.reasoning_chars) == (0, 7)
    await chat.wait_idle()
    done = await chat.play("", Thought("see. "), "One", place=Continue(first.message_id))
    requested = engine.requests[-1].messages[-1]
    assert (requested.role, requested.content, requested.reasoning) == ("assistant", "", "Let me ")
    parts = [part for part in chat.reader.of(Reasoning) if part.turn_id == done.turn_id]
    assert (parts[0].off, done.reasoning_chars, done.chars) == (7, 12, 3)
    await chat.wait_idle()
    reply = (await chat.history()).messages[1]
    assert (reply.content, reply.reasoning) == ("One", "Let me see. ")


async def test_the_system_prompt_of_now_counts(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    await continue_reply(chat, first.message_id, system="Be brief.")
    assert [message.role for message in engine.requests[-1].messages] == ["system", "user", "assistant"]


async def test_a_format_is_for_whole_replies(chat: Chat) -> None:
    first = await cut(chat)
    send = MessageRequest(
        client_msg_id="f", conversation_id=CONVERSATION_ID, content="", place=Continue(first.message_id)
    )
    refused = await chat.sessions.turns.send(
        chat.owner, chat.reader, send, GenerationConfig(format=JsonObject())
    )
    assert isinstance(refused, BadParams)
    assert refused.field == "format"
    refused = await chat.begin_send("", place=Continue(first.message_id), tool_choice="required")
    assert isinstance(refused, BadParams)
    assert refused.field == "tool_choice"


async def test_an_engine_that_can_not_go_on_says_so(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    assert engine.facts is not None
    without = msgspec.structs.replace(engine.facts, features=("tools",))
    engine._life.loaded(without)
    with pytest.raises(BadParams, match="`continue` can't be followed") as refused:
        await chat.send("", place=Continue(first.message_id))
    assert refused.value.field == "continue"
    await chat.wait_idle()
    assert (await chat.messages())[1] == ("assistant", "One two")


async def test_a_reply_with_open_calls_is_busy_and_one_that_called_does_not_go_on(chat: Chat) -> None:
    done = await chat.play("Weather?", "I look.", BERN, tools=TOOLS)
    with pytest.raises(Busy):
        await chat.send("", place=Continue(done.message_id))
    await chat.result(done.open[0], "Rain.")
    end = await chat.follow("It rains.")
    await chat.wait_idle()
    with pytest.raises(Conflict, match="calls tools"):
        await chat.send("", place=Continue(done.message_id))
    with pytest.raises(Conflict, match="is complete"):
        await chat.send("", place=Continue(end.message_id))


async def test_a_reply_whose_calls_were_cut_off_does_not_go_on(chat: Chat, engine: ScriptedEngine) -> None:
    engine.script(("I look.", BERN, "And"))
    accepted = await chat.running("Weather?", "I look.", tools=TOOLS)
    await chat.step()
    chat.cancel(accepted.turn_id)
    done = await chat.reader.next(Done)
    await chat.wait_idle()
    with pytest.raises(Conflict, match="calls tools"):
        await chat.send("", place=Continue(done.message_id))


async def test_a_reply_to_results_goes_on(chat: Chat, engine: ScriptedEngine) -> None:
    done = await chat.play("Weather?", "I look.", BERN, tools=TOOLS)
    await chat.result(done.open[0], "Rain.")
    engine.script(("It", " rains."))
    await eventually(lambda: len(engine.requests) == 2)
    following = chat.reader.of(Accepted)[-1]
    await chat.step()
    chat.cancel(following.turn_id)
    first = await chat.reader.next(Done, count=2)
    await chat.wait_idle()
    second = await chat.play("", " rains.", place=Continue(first.message_id), tools=TOOLS)
    accepted = chat.reader.of(Accepted)[-1]
    assert (accepted.message_id, accepted.continues) == (done.message_id, first.message_id)
    roles = [message.role for message in engine.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    await chat.wait_idle()
    assert (await chat.messages())[-1] == ("assistant", "It rains.")
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, second.turn_id)
    assert (await chat.messages())[-1] == ("assistant", "It")


async def test_calls_that_it_added_are_taken_back_with_it(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat)
    engine.script([" three", BERN, " and"])
    accepted = await chat.send("", place=Continue(first.message_id), tools=TOOLS)
    await eventually(lambda: len(engine.requests) > 1)
    for _ in range(3):
        await chat.step()
    chat.cancel(accepted.turn_id)
    await chat.reader.next(Done, count=2)
    await chat.wait_idle()
    reply = (await chat.history()).messages[1]
    assert isinstance(reply.calls, tuple)
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, accepted.turn_id)
    reply = (await chat.history()).messages[1]
    assert (reply.content, reply.calls) == ("One two", msgspec.UNSET)
    assert (await continue_reply(chat, first.message_id)).reason is Reason.STOP


@pytest.mark.parametrize("script", [(BERN, " and"), (" three", BERN, " and")])
async def test_a_rollback_takes_back_a_call_too(
    chat: Chat, engine: ScriptedEngine, script: tuple[Step, ...]
) -> None:
    first = await cut(chat)
    before = (await chat.history()).messages
    engine.script(script)
    accepted = await chat.send("", place=Continue(first.message_id), tools=TOOLS)
    await eventually(lambda: len(engine.requests) > 1)
    while not chat.reader.of(ToolCall):
        await chat.step()
    chat.cancel(accepted.turn_id, rollback=True)
    await chat.reader.next(Done, count=2)
    await chat.wait_idle()
    assert (await chat.history()).messages == before
    assert (await continue_reply(chat, first.message_id)).reason is Reason.STOP


async def test_a_reply_that_goes_on_may_call(chat: Chat, engine: ScriptedEngine) -> None:
    first = await cut(chat, "I", "I look.", ask="Weather?")
    done = await chat.play("", " look.", BERN, place=Continue(first.message_id), tools=TOOLS)
    assert (done.reason, done.message_id) == (Reason.TOOLS, first.message_id)
    await chat.result(done.open[0], "Rain.")
    end = await chat.follow("It rains.")
    assert not engine.requests[-1].spec.continues
    contents = [message.content for message in engine.requests[-1].messages]
    assert contents == ["Weather?", "I look.", "Rain."]
    await chat.wait_idle()
    page = await chat.history()
    assert [message.content for message in page.messages] == ["Weather?", "I look.", "It rains."]
    assert page.messages[-1].message_id == end.message_id
    late = Recorder()
    await chat.resume(late, 0)
    assert continuous(late.events)
    chat.leave(late)


async def test_filters_read_both_sides_of_the_seam_as_one(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, filters=filtering(outgoing=["darn"])) as chat:
        done = await chat.play("Hm?", "Oh da", "y.", max_new_tokens=1)
        assert (done.reason, done.chars) == (Reason.LENGTH, 5)
        await chat.wait_idle()
        engine.script("rn it!")
        await chat.send("", place=Continue(done.message_id))
        await eventually(lambda: len(engine.requests) == 2)
        engine.step(4)
        bad = await chat.reader.next(Done, count=2)
        assert (bad.reason, bad.chars) == (Reason.FILTERED, 5)
        await chat.wait_idle()
        assert (await chat.messages())[1] == ("assistant", "Oh da")
        good = await chat.play("", "y.", place=Continue(done.message_id))
        assert (good.chars, good.text_sha256) == (7, digest("Oh day."))
        await chat.wait_idle()
        chat.leave()


async def test_one_that_nobody_knows_of_leaves_the_reply_as_it_stood(
    chat: Chat, other: Chat, store: Redis
) -> None:
    """The store took it in, and its sender was told that it did not answer. The branch that was active is so still."""
    first = await cut(chat)
    await chat.exchange("", "Uno.", place=Regenerate(first.message_id))
    await chat.wait_idle()
    before = (await chat.history()).messages
    chat.engine.script(" three four")
    going = await chat.running("", "", place=Continue(first.message_id), client_msg_id="more")
    other.sessions.parts.storage.unsettled.add(going.turn_id)
    await store.delete(f"ms:replica:{chat.sessions.parts.storage.ownership.replica}")
    await other.sessions.parts.reaper.reap()
    assert (await other.history()).messages == before
    other.engine.script(" three four")
    again = await other.send("", place=Continue(first.message_id), client_msg_id="more")
    assert (again.duplicate, again.turn_id == going.turn_id) == (False, False)
    await eventually(lambda: len(other.engine.requests) == 1)
    done = await other.finish(again.turn_id)
    assert done.text_sha256 == digest("One two three four")
    chat.engine.step()
    await chat.wait_idle()
