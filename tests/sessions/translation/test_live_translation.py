"""A source that grows is translated in a turn: kept, resumed, cancelled and gone on with as any reply."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from engine.messages import Languages, Params, Translation
from engine.scripted import FEATURES, Thought
from sessions.errors import BadParams, Busy, Conflict, ContentTooLong, NotFound, Refused
from sessions.events import Accepted, Delta, Done, Reason, SourceText
from sessions.records import PublishPolicy, SourceState
from sessions.translation.translator import Translator
from sessions.turn.interfaces import Grown, Growth
from sessions.turn.message_request import (
    Append,
    Continue,
    Edit,
    GenerationConfig,
    MessageRequest,
    OnBusy,
    Placement,
    Regenerate,
)
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually
from tests.sessions.recorder import Recorder, continuous


def begin(
    chat: Chat,
    *,
    policy: PublishPolicy = "agreement",
    name: str = "i",
    target: str = "de",
    on_busy: OnBusy = "reject",
    reader: Recorder | None = None,
) -> asyncio.Task[Refused | None]:
    send = MessageRequest(
        client_msg_id=name,
        conversation_id=CONVERSATION_ID,
        content="",
        place=Append(),
        on_busy=on_busy,
        source=SourceState("en", target, policy),
    )
    return chat.sessions.turns.send(
        chat.owner, reader or chat.reader, send, GenerationConfig(Params(do_sample=False))
    )


async def start_translation(chat: Chat, *, policy: PublishPolicy = "agreement", name: str = "i") -> Accepted:
    """An interpretation that was accepted."""
    before = len(chat.reader.of(Accepted))
    assert await begin(chat, policy=policy, name=name) is None
    return await chat.reader.next(Accepted, count=before + 1)


async def grow(chat: Chat, off: int, text: str, *, final: bool = False, turn_id: str | None = None) -> Grown:
    growth = Growth(off=off, text=text, final=final, turn_id=turn_id)
    return await chat.sessions.grow(chat.owner, CONVERSATION_ID, growth)


async def engine_inputs(chat: Chat, count: int) -> list[str]:
    """What the engine was asked, once it was asked so often: the source, and what is forced of the target."""
    await eventually(lambda: len(chat.engine.requests) >= count)
    return [message.content for message in chat.engine.requests[count - 1].messages]


def learn(chat: Chat, **facts: Any) -> None:
    """The model is another one from now on."""
    assert chat.engine.facts is not None
    chat.engine._facts = msgspec.structs.replace(chat.engine.facts, **facts)
    chat.engine._life.loaded(chat.engine._facts)


async def follow(chat: Chat, count: int, off: int, text: str, **options: Any) -> list[str]:
    """Grows the source, and lets the engine say what it has to; what it was asked then."""
    await grow(chat, off, text, **options)
    asked = await engine_inputs(chat, count)
    await play(chat)
    return asked


async def play(chat: Chat, steps: int = 8) -> None:
    """Lets the engine say what it has to."""
    chat.engine.step(steps)
    await eventually(lambda: chat.engine.statistics().running == 0)


async def to_the_end(chat: Chat, *, count: int = 1) -> Done:
    """Steps the engine until so many turns have ended."""
    while len(chat.reader.of(Done)) < count:
        chat.engine.step()
        await asyncio.sleep(0)
    return chat.reader.of(Done)[count - 1]


async def test_words_are_told_as_three_hypotheses_agree_and_never_revised(chat: Chat) -> None:
    accepted = await start_translation(chat)
    for reply in ("Guten Tag", "Guten Abend", "Guten Morgen an", " Morgen an alle."):
        chat.engine.script(reply)
    assert await follow(chat, 1, 0, "Good ") == ["Translate into German: Good"]
    await follow(chat, 2, 5, "day ")
    assert chat.reader.text(accepted.turn_id) == ""
    await follow(chat, 3, 9, "morning ")
    await chat.reader.wait_for_text("Guten")
    await grow(chat, 17, "everybody.", final=True)
    assert await engine_inputs(chat, 4) == ["Translate into German: Good day morning everybody.", "Guten"]
    done = await to_the_end(chat)
    assert (done.reason, done.chars) == (Reason.STOP, 21)
    assert await chat.messages() == [
        ("user", "Good day morning everybody."),
        ("assistant", "Guten Morgen an alle."),
    ]
    deltas = chat.reader.of(Delta)
    assert [delta.src_off for delta in deltas] == sorted(delta.src_off or 0 for delta in deltas)
    assert deltas[-1].src_off == 27
    assert continuous(chat.reader.events)


async def test_growth_stops_the_decode_under_way(chat: Chat, reader: Recorder) -> None:
    await start_translation(chat)
    chat.engine.script("Guten Tag und noch viel mehr")
    await grow(chat, 0, "Good ")
    await engine_inputs(chat, 1)
    chat.engine.step(2)
    chat.engine.script("Guten Morgen")
    await grow(chat, 5, "morning ")
    await engine_inputs(chat, 2)
    assert chat.engine.statistics().running <= 1
    await play(chat)
    chat.engine.script("Guten Abend")
    await follow(chat, 3, 13, "to ")
    await reader.wait_for_text("Guten")
    done = await chat.stop()
    assert done.usage.wasted_tokens == done.usage.generated_tokens - 1


async def test_what_comes_twice_is_taken_once_and_what_contradicts_is_refused(chat: Chat) -> None:
    accepted = await start_translation(chat, policy="segment")
    first = await grow(chat, 0, "Good mor")
    again = await grow(chat, 0, "Good mor", turn_id=accepted.turn_id)
    more = await grow(chat, 5, "morning")
    assert (first.already, again.already, more.already) == (False, True, False)
    assert more.chars == 12
    with pytest.raises(ContentTooLong, match=r"100012 characters; 32000 are allowed\. Begin another"):
        await grow(chat, 12, "x" * 100_000)
    for off, text, final in ((20, "x", False), (0, "Bad", False), (0, "Good", True), (0, "", True)):
        with pytest.raises(Conflict):
            await grow(chat, off, text, final=final)
    assert "".join(event.text for event in chat.reader.of(SourceText)) == "Good morning"
    assert [event.off for event in chat.reader.of(SourceText)] == [0, 8]
    chat.cancel()
    await chat.reader.next(Done)
    assert (await grow(chat, 5, "morning", turn_id=accepted.turn_id)).already
    with pytest.raises(Conflict, match="ended"):
        await grow(chat, 12, "!", turn_id=accepted.turn_id)
    with pytest.raises(NotFound, match="begin with"):
        await grow(chat, 12, "!")
    assert (await chat.messages())[0] == ("user", "Good morning")


async def test_a_repeated_beginning_makes_one_interpretation(chat: Chat, reader: Recorder) -> None:
    accepted = await start_translation(chat, policy="segment")
    await grow(chat, 0, "Good morning")
    second = Recorder()
    assert await begin(chat, policy="segment", reader=second) is None
    repeated = second.of(Accepted)[0]
    assert (repeated.duplicate, repeated.turn_id, repeated.content) == (
        True,
        accepted.turn_id,
        "Good morning",
    )
    assert isinstance(await begin(chat, target="fr"), Conflict)
    assert isinstance(await begin(chat, name="other"), Busy)
    chat.leave(second)
    chat.cancel()
    await reader.next(Done)


async def test_a_cancel_stops_it_within_a_step_and_it_goes_on_where_it_was(chat: Chat) -> None:
    accepted = await start_translation(chat, policy="segment")
    chat.engine.script("Eins.")
    chat.engine.script("Zwei drei vier.")
    await follow(chat, 1, 0, "One. Two three four. ")
    await engine_inputs(chat, 2)
    chat.engine.step(2)
    await chat.reader.wait_for_text("Eins. Zwei drei")
    done = await chat.stop()
    assert (done.turn_id, done.reason, done.cancel and done.cancel.steps_after) == (
        accepted.turn_id,
        Reason.CANCELLED,
        0,
    )
    chat.engine.script(" vier.")
    await chat.send("", place=Continue(done.message_id), client_msg_id="on")
    assert await engine_inputs(chat, 3) == ["Translate into German: Two three four.", "Zwei drei"]
    chat.engine.script("Fünf.")
    await grow(chat, 21, "Five.", final=True)
    done = await to_the_end(chat, count=2)
    assert done.reason is Reason.STOP
    assert await chat.messages() == [
        ("user", "One. Two three four. Five."),
        ("assistant", "Eins. Zwei drei vier. Fünf."),
    ]


async def test_another_replica_grows_it_and_sees_all(chat: Chat, other: Chat, reader: Recorder) -> None:
    accepted = await start_translation(chat, policy="segment")
    for reply in ("Eins.", "Zwei."):
        chat.engine.script(reply)
    await grow(chat, 0, "One. ")
    page = await other.history()
    assert (page.messages[0].content, page.messages[0].interprets) == ("One. ", accepted.interprets)
    assert (await grow(other, 5, "Two.", final=True)).chars == 9
    await to_the_end(chat)
    await other.reader.next(Done)
    assert "".join(event.text for event in other.reader.of(SourceText)) == "Two."
    assert other.reader.text(accepted.turn_id) == "Eins. Zwei."
    with pytest.raises(Conflict):
        await grow(other, 9, "!", turn_id=accepted.turn_id)


async def test_a_death_loses_and_doubles_nothing(chat: Chat, other: Chat) -> None:
    await start_translation(chat, policy="segment")
    for reply in ("Eins.", "Zwei drei."):
        chat.engine.script(reply)
    await follow(chat, 1, 0, "One. Two three. ")
    await engine_inputs(chat, 2)
    await chat.step()
    await chat.reader.wait_for_text("Eins. Zwei")
    await chat.lose_lease()
    assert await other.reap() == 1
    page = await other.history()
    assert [(one.content, one.status) for one in page.messages] == [
        ("One. Two three. ", "complete"),
        ("Eins. Zwei", "interrupted"),
    ]
    other.engine.script(" drei.")
    await other.send("", place=Continue(page.messages[1].message_id), client_msg_id="on")
    assert await engine_inputs(other, 1) == ["Translate into German: Two three.", "Zwei"]
    other.engine.script("Vier.")
    await grow(other, 16, "Four.", final=True)
    await to_the_end(other)
    assert await other.messages() == [
        ("user", "One. Two three. Four."),
        ("assistant", "Eins. Zwei drei. Vier."),
    ]
    chat.engine.step()
    await chat.reader.next(Done)


async def test_an_engine_that_dies_costs_no_word(chat: Chat, reader: Recorder) -> None:
    await start_translation(chat, policy="segment")
    chat.engine.script("Eins zwei.")
    await grow(chat, 0, "One two.", final=True)
    await engine_inputs(chat, 1)
    await chat.step()
    chat.engine.script(" zwei.")
    chat.engine.die()
    chat.engine.revive()
    assert await engine_inputs(chat, 2) == ["Translate into German: One two.", "Eins"]
    done = await to_the_end(chat)
    assert (done.reason, reader.text(done.turn_id)) == (Reason.STOP, "Eins zwei.")


@pytest.mark.parametrize("again", [Regenerate, Edit])
async def test_a_source_that_was_translated_is_translated_once_more(
    chat: Chat, again: type[Regenerate | Edit]
) -> None:
    accepted = await start_translation(chat, policy="segment")
    chat.engine.script("Eins.")
    await grow(chat, 0, "One.", final=True)
    done = await to_the_end(chat)
    chat.engine.script("Ein.")
    place: Placement = Regenerate(done.message_id) if again is Regenerate else Edit(accepted.message_id)
    await chat.send("" if again is Regenerate else "One!", place=place)
    await to_the_end(chat, count=2)
    assert (await chat.messages())[1] == ("assistant", "Ein.")
    assert len(chat.engine.requests) == 2


def translator(chat: Chat) -> Translator:
    """The one that runs there, whose patience the test sets."""
    sources = chat.sessions.turns._runner._sources
    assert isinstance(sources, Translator)
    return sources


async def test_a_pause_behind_a_sentence_has_it_told(chat: Chat, reader: Recorder) -> None:
    translator(chat)._pause_s = 0.0
    await start_translation(chat, policy="segment")
    chat.engine.script("Eins.")
    await follow(chat, 1, 0, "One.")
    await reader.wait_for_text("Eins.")
    chat.cancel()
    await reader.next(Done)


async def test_a_source_that_nobody_grows_gives_its_place_back(chat: Chat, reader: Recorder) -> None:
    translator(chat)._pause_s = translator(chat)._idle_s = 0.0
    await start_translation(chat)
    done = await reader.next(Done)
    assert done.reason is Reason.TIMEOUT
    translator(chat)._idle_s = 600.0
    await chat.send("", place=Continue(done.message_id), client_msg_id="on")
    chat.engine.script("Eins.")
    await grow(chat, 0, "One.", final=True)
    assert (await to_the_end(chat, count=2)).reason is Reason.STOP


async def test_a_model_without_end_is_stopped_at_the_length_of_its_segment(chat: Chat) -> None:
    """It may think, for which it has more tokens: those of its text are counted apart."""
    await start_translation(chat, policy="segment")
    chat.engine.script("word " * 500)
    await grow(chat, 0, "One.", final=True)
    await engine_inputs(chat, 1)
    chat.engine.step(3 * 4 + 32)
    await eventually(lambda: chat.engine.statistics().running == 0)
    done = await chat.reader.next(Done)
    assert (done.reason, done.usage.generated_tokens) == (Reason.STOP, 3 * 4 + 32)


async def test_a_translator_is_asked_by_its_languages_and_a_forced_prefix(chat: Chat) -> None:
    known = Languages(sources=("eng_Latn", "en"), targets=("de_DE", "fr"), source_tokens=100)
    learn(chat, languages=known, features=("translate",))
    refusal = await begin(chat, target="zh", name="other")
    assert "`target` is one of de_DE, fr" in str(refusal)
    await start_translation(chat)
    for reply in ("Guten Tag", "Guten Morgen", "Guten Morgen ihr"):
        chat.engine.script(reply)
    await follow(chat, 1, 0, "Good ")
    await follow(chat, 2, 5, "morning ")
    unfinished = Translation("de_DE", "en", unfinished=True)
    assert [one.spec.translation for one in chat.engine.requests] == [unfinished] * 2
    await follow(chat, 3, 13, "to ")
    await chat.reader.wait_for_text("Guten")
    chat.engine.script(" Morgen.")
    await grow(chat, 16, "all.", final=True)
    assert await engine_inputs(chat, 4) == ["Good morning to all."]
    assert chat.engine.requests[3].spec.translation == Translation("de_DE", "en", "Guten")
    await to_the_end(chat)


@pytest.mark.parametrize("again", [Regenerate, Edit, Continue])
async def test_a_translation_waits_behind_no_other_reply(
    chat: Chat, reader: Recorder, again: type[Regenerate | Edit | Continue]
) -> None:
    """It would be answered as if somebody had said its source."""
    accepted = await start_translation(chat, policy="segment")
    chat.engine.script("Eins.")
    await follow(chat, 1, 0, "One. Two")
    await reader.wait_for_text("Eins.")
    done = await chat.stop()
    await chat.running("Hello!", "This", parent_id=None)
    named = accepted.message_id if again is Edit else done.message_id
    with pytest.raises(BadParams, match="can't be enqueue for a translation") as refused:
        await chat.send("Two." if again is Edit else "", place=again(named), on_busy="enqueue")
    assert refused.value.field == "on_busy"
    assert len(chat.engine.requests) == 2
    chat.cancel()
    await reader.next(Done, count=2)


async def test_a_chat_model_that_thinks_is_asked_to_think_least_and_has_room_for_it(chat: Chat) -> None:
    learn(chat, features=(*FEATURES, "reasoning"))
    await start_translation(chat, policy="segment")
    chat.engine.script([*[Thought("hm ")] * 60, "Eins."])
    await grow(chat, 0, "One.", final=True)
    done = await to_the_end(chat)
    assert chat.engine.requests[0].spec.reasoning == "least"
    assert (done.reason, chat.reader.text(done.turn_id)) == (Reason.STOP, "Eins.")


async def test_a_sentence_whose_thoughts_have_no_end_is_not_lost(chat: Chat, reader: Recorder) -> None:
    """Nothing was told of it: the turn says so, and goes on with it."""
    await start_translation(chat, policy="segment")
    chat.engine.script("Eins.")
    chat.engine.script([Thought("hm ")] * 500)
    await grow(chat, 0, "One. Two.", final=True)
    done = await to_the_end(chat)
    assert (done.reason, reader.text(done.turn_id)) == (Reason.LENGTH, "Eins.")
    chat.engine.script("Zwei.")
    await chat.send("", place=Continue(done.message_id), client_msg_id="on")
    assert (await to_the_end(chat, count=2)).reason is Reason.STOP
    assert (await chat.messages())[1] == ("assistant", "Eins. Zwei.")


@pytest.mark.parametrize(
    ("facts", "words", "field"),
    [
        ({"languages": Languages((), (), 9)}, "does not say which languages it translates", "model"),
        ({"languages": Languages((), ("de",), 9)}, "Leave `source` out", "source"),
        ({"features": ()}, "can't interpret", None),
    ],
)
async def test_a_model_that_can_not_translate_so_is_refused_before_it_is_asked(
    chat: Chat, facts: dict[str, Any], words: str, field: str | None
) -> None:
    learn(chat, **{"features": ("translate",)} | facts)
    refusal = await begin(chat)
    assert isinstance(refusal, BadParams)
    assert words in str(refusal)
    assert field in (refusal.field, None)
