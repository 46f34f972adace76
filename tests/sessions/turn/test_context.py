"""What the model is shown fits its window, begins where it began before, and leaves out what nobody said."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.messages import Message, ModelFacts, Params
from engine.scripted import count_words
from sessions.errors import ContextOverflow
from sessions.records import MessageRecord
from sessions.turn.prompt import (
    LONGEST_TOKEN_BYTES,
    ContextBudget,
    Prompt,
    fit,
    prompt_messages,
    refuse_oversized,
)

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
FACTS = ModelFacts(
    model="none", context_tokens=10, defaults=Params(), device="none", dtype="none", max_batch=1, parameters=0
)  # fmt: skip
MOST = FACTS.context_tokens * LONGEST_TOKEN_BYTES
LENGTHS = st.tuples(st.integers(1, 30), st.integers(0, 30))


def record(name: str, role: str, words: int) -> MessageRecord:
    return MessageRecord(
        message_id=name,
        parent_id=None,
        turn_id=name,
        role="user" if role == "user" else "assistant",
        content=" ".join([name] * words),
        status="complete",
        created_at=0,
    )


def branch(lengths: Sequence[tuple[int, int]], newest: int) -> list[MessageRecord]:
    """Exchanges of so many words in question and answer, and a new question."""
    records = []
    for number, (question, answer) in enumerate(lengths):
        records += [record(f"u{number}", "user", question), record(f"a{number}", "assistant", answer)]
    return [*records, record(f"u{len(lengths)}", "user", newest)]


async def word_count(messages: Sequence[Message]) -> int:
    return count_words(messages)


async def fitted(
    records: list[MessageRecord], *, window: int, reply: int, system: str = "", keeps_all: bool = False
) -> Prompt:
    budget = ContextBudget.of(window, reply)
    return await fit(system, records, budget=budget, count=word_count, keeps_all=keeps_all)


@patient
@given(
    st.lists(LENGTHS, max_size=12),
    st.integers(1, 30),
    st.integers(60, 300),
    st.sampled_from(["", "Be kind."]),
)
async def test_a_prompt_fits_and_drops_only_the_oldest_exchanges_whole(
    lengths: list[tuple[int, int]], newest: int, window: int, system: str
) -> None:
    records = branch(lengths, newest)
    budget = ContextBudget.of(window, 512)
    prompt = await fit(system, records, budget=budget, count=word_count)
    tokens = count_words(prompt.messages)
    kept = next(place for place, one in enumerate(records) if one.message_id == prompt.context_from)
    assert prompt.messages == prompt_messages(system, records[kept:])
    assert records[kept].role == "user"
    assert tokens <= budget.window - budget.reply or (kept == len(records) - 1 and tokens < window)
    assert bool(system) == (prompt.messages[0].role == "system")
    if count_words(prompt_messages(system, records)) <= budget.window - budget.reply:
        assert kept == 0


@patient
@given(st.lists(LENGTHS, min_size=20, max_size=30), st.integers(160, 300))
async def test_the_beginning_stays_put_for_many_turns(lengths: list[tuple[int, int]], window: int) -> None:
    """Each move frees a quarter of the room, so that the engine's kept prefix is not lost at every turn."""
    first, moves = 0, []
    for turn, (newest, _) in enumerate(lengths):
        records = branch(lengths[:turn], newest)[2 * first :]
        prompt = await fitted(records, window=window, reply=window)
        assert prompt.messages[-1].content.endswith(records[-1].content)
        if prompt.context_from != records[0].message_id:
            first = int(prompt.context_from[1:])
            moves.append((turn, count_words(prompt.messages)))
    limit = window - window // 4
    for (turn, tokens), (later, _) in pairwise(moves):
        grown = sum(question + answer + 8 for question, answer in lengths[turn:later]) + lengths[later][0] + 4
        assert tokens + grown > limit
        assert tokens <= limit * 3 // 4 or tokens == lengths[turn][0] + 4


async def test_a_message_that_alone_does_not_fit_is_refused() -> None:
    """The system prompt counts too. A long message may use the reply's room: the window keeps one token for it."""
    with pytest.raises(ContextOverflow) as refusal:
        await fitted(branch([(3, 3)], 96), window=100, reply=512)
    assert (refusal.value.tokens, refusal.value.limit) == (100, 99)
    assert "100" in str(refusal.value)
    with pytest.raises(ContextOverflow):
        await fitted(branch([], 90), window=100, reply=1, system="Be kind.")
    assert count_words((await fitted(branch([], 95), window=100, reply=512)).messages) == 99


async def test_the_whole_history_is_kept_or_refused_where_that_was_asked_for() -> None:
    for reply in (10, 80):  # the reply's room may be used
        prompt = await fitted(branch([(10, 10)] * 2, 20), window=100, reply=reply, keeps_all=True)
        assert (count_words(prompt.messages), prompt.context_from) == (80, "u0")
    with pytest.raises(ContextOverflow) as refusal:
        await fitted(branch([(10, 10)] * 3, 20), window=100, reply=10, keeps_all=True)
    assert (refusal.value.tokens, refusal.value.limit) == (108, 99)


def test_empty_replies_are_left_out() -> None:
    records = branch([(1, 0), (1, 2)], 1)
    messages = [(message.role, message.content) for message in prompt_messages("Be kind.", records)]
    users = [("user", "u0"), ("user", "u1")]
    assert messages == [("system", "Be kind."), *users, ("assistant", "a1 a1"), ("user", "u2")]


@pytest.mark.parametrize("text", ["x" * (MOST + 1), " " * (2 * MOST + 1), "\u2003" * (2 * MOST // 3 + 1)])
def test_what_no_window_holds_is_refused_before_it_is_tokenized(text: str) -> None:
    """White space too, which templates leave out only at the ends, and tokenizers are slow about."""
    with pytest.raises(ContextOverflow):
        refuse_oversized([Message("assistant", text), Message("user", "")], FACTS)


@pytest.mark.parametrize("text", ["x" * MOST, "x" * MOST + " " * MOST])
def test_what_a_window_may_hold_is_counted_by_the_engine(text: str) -> None:
    refuse_oversized([Message("assistant", text)], FACTS)
