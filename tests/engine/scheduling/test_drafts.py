"""A draft changes no token of a translation: what was right of it takes one step, and the rest is made as if nobody had guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import FinishReason, Output
from engine.scheduling.core import EngineCore
from engine.scheduling.scheduler import PrefillBudget
from tests.engine.tiny_models import GREEDY, Numbers, end_of, run_out, tokens_of
from tests.engine.translators import (
    END,
    KINDS,
    VOCABULARY,
    beginning,
    generated,
    served,
    source,
    translating,
)

LENGTH = 12
SOME = msgspec.structs.replace(GREEDY, max_new_tokens=LENGTH)
TOKENS = st.lists(st.integers(-2, VOCABULARY + 2), max_size=LENGTH + 4)


class Followed:
    """A core, each step of which is counted for a translation."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.outputs: list[Output] = []

    def steps(self, name: str) -> int:
        """Translates to the end of one; gives how many steps that took."""
        request = self.core._active[name].request
        self.outputs += run_out(self.core)
        return request.steps

    def text(self, name: str) -> list[int]:
        return tokens_of(self.outputs, name)


@pytest.fixture
def followed() -> Followed:
    return Followed(EngineCore(served("marian")))


@settings(deadline=None, max_examples=15)
@given(
    kind=st.sampled_from(sorted(KINDS)), number=st.integers(0, 9), kept=st.integers(0, LENGTH), guessed=TOKENS
)
def test_with_any_draft_a_translation_is_that_of_generate(
    kind: str, number: int, kept: int, guessed: list[int]
) -> None:
    """One that is right up to somewhere, and then is anything."""
    text, core = source(3 + 6 * number, salt=number), EngineCore(served(kind))
    whole = generated(kind, text, LENGTH)
    core.submit(translating("one", text, beginning(kind), SOME, draft=[*whole[:kept], *guessed]))
    core.submit(translating("beside", text[:3], beginning(kind), SOME))
    outputs = run_out(core)
    assert tokens_of(outputs, "one") == whole
    assert tokens_of(outputs, "beside") == generated(kind, text[:3], LENGTH)


@settings(deadline=None, max_examples=15)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), ahead=st.integers(1, 5))
def test_a_source_that_grows_is_translated_as_if_each_hypothesis_were_made_anew(
    data: st.DataObject, kind: str, ahead: int
) -> None:
    """Each one begins with what was told, which grows, too, and has the one before as its draft."""
    core, text = EngineCore(served(kind)), source(40, salt=data.draw(st.integers(0, 5)))
    reported: list[int] = []
    draft: list[int] = []
    for number, length in enumerate(data.draw(growths())):
        name, started = f"{number}", beginning(kind, reported)
        core.submit(translating(name, text[:length], started, SOME, draft=draft, ahead=ahead))
        outputs = run_out(core)
        tokens, end = tokens_of(outputs, name), end_of(outputs, name)
        assert tokens == generated(kind, text[:length], LENGTH, reported)[: len(tokens)]
        assert end.generated_tokens - end.accepted_tokens <= ahead
        more = data.draw(st.integers(0, min(2, len(tokens))))
        reported, draft = [*reported, *tokens[:more]], tokens[more:]


@st.composite
def growths(draw: st.DrawFn) -> list[int]:
    """How long a source is, time and again."""
    return sorted(draw(st.lists(st.integers(1, 40), min_size=2, max_size=6, unique=True)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 13, 40])
def test_drafts_that_wait_for_room_in_a_step_are_those_of_generate(
    kind: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillBudget, "budget_beside", lambda _pace, _replies: budget)
    core = EngineCore(served(kind))
    texts = [source(3 + 6 * number, salt=number) for number in range(6)]
    wholes = [generated(kind, text, LENGTH) for text in texts]
    for number, (text, whole) in enumerate(zip(texts, wholes, strict=True)):
        started, draft = beginning(kind, whole[:2]), [*whole[2 : 2 + 2 * number], 9]
        core.submit(translating(f"{number}", text, started, SOME, draft=draft))
    outputs = run_out(core)
    for number, (text, whole) in enumerate(zip(texts, wholes, strict=True)):
        assert tokens_of(outputs, f"{number}") == generated(kind, text, LENGTH, whole[:2])


def test_a_draft_that_is_right_takes_one_step(followed: Followed) -> None:
    whole = generated("marian", source(20), LENGTH)
    followed.core.submit(translating("one", source(20), beginning("marian"), SOME, draft=whole[:-1]))
    assert followed.steps("one") == 1
    assert followed.text("one") == whole
    end = end_of(followed.outputs, "one")
    assert (end.generated_tokens, end.accepted_tokens) == (LENGTH, LENGTH - 1)


def test_behind_what_was_right_no_more_is_made_than_was_asked_for(followed: Followed) -> None:
    whole = generated("marian", source(20), LENGTH)
    wrong = [*whole[:3], whole[3] + 1, *whole[4:]]
    requested = translating("one", source(20), beginning("marian"), SOME, draft=wrong, ahead=2)
    followed.core.submit(requested)
    assert followed.steps("one") == 2
    assert followed.text("one") == whole[:5]
    assert end_of(followed.outputs, "one").reason is FinishReason.LENGTH


def test_without_a_draft_as_much_is_made_as_was_asked_for(followed: Followed) -> None:
    followed.core.submit(translating("one", source(20), beginning("marian"), SOME, ahead=3))
    assert followed.steps("one") == 3
    assert followed.text("one") == generated("marian", source(20), LENGTH)[:3]


def test_a_model_whose_last_token_is_forced_goes_as_far_as_was_asked_for() -> None:
    """That is no end of its text."""
    core = EngineCore(served("mbart"))
    core.submit(translating("one", source(20), beginning("mbart"), SOME, ahead=3))
    assert tokens_of(run_out(core), "one") == generated("mbart", source(20), LENGTH)[:3]


@pytest.mark.parametrize(
    "how", [{"do_sample": True, "seed": 3}, {"repetition_penalty": 1.3}, {"min_tokens": 4}, {"logit_bias": ((5, 4.0),)}]
)  # fmt: skip
def test_a_draft_counts_only_where_the_likeliest_token_is_taken(
    followed: Followed, how: dict[str, Any]
) -> None:
    """Else the reply is what it is without one."""
    sampling, draft = msgspec.structs.replace(SOME, **how), generated("marian", source(20), LENGTH)
    for name, given_draft, ahead in (("with", draft, 2), ("without", [], None)):
        requested = translating(
            name, source(20), beginning("marian"), sampling, draft=given_draft, ahead=ahead
        )
        followed.core.submit(requested)
        followed.outputs += run_out(followed.core)
    assert followed.text("with") == followed.text("without"), "nor does it end sooner"
    assert end_of(followed.outputs, "with").accepted_tokens == 0


def test_a_draft_is_checked_as_far_as_one_step_computes(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind is made."""
    monkeypatch.setattr("engine.scheduling.active_request.MOST_DRAFTED", 5)
    whole = generated("marian", source(20), LENGTH)
    followed.core.submit(translating("one", source(20), beginning("marian"), SOME, draft=whole))
    assert followed.steps("one") == LENGTH - 5
    assert followed.text("one") == whole


def test_the_last_token_that_a_translation_may_have_is_made(followed: Followed) -> None:
    draft = [*generated("marian", source(20), LENGTH), 5, 6]
    followed.core.submit(translating("one", source(20), beginning("marian"), SOME, draft=draft))
    followed.outputs += run_out(followed.core)
    assert end_of(followed.outputs, "one").generated_tokens == LENGTH


def test_an_end_in_a_draft_is_made_by_the_model(followed: Followed) -> None:
    followed.core.submit(translating("one", source(20), beginning("marian"), SOME, draft=[5, END, 6]))
    assert list(followed.core._active["one"].request.draft) == [5]


def test_drafts_that_outgrow_the_memory_wait_and_are_taken_up_again() -> None:
    core = EngineCore(served("marian", kv_tokens=224))
    texts = [source(30, salt=number) for number in range(4)]
    long = msgspec.structs.replace(GREEDY, max_new_tokens=40)
    wholes = [generated("marian", text, 40) for text in texts]
    for number, (text, whole) in enumerate(zip(texts, wholes, strict=True)):
        core.submit(translating(f"{number}", text, beginning("marian"), long, draft=whole[:20]))
    outputs = run_out(core)
    assert core.statistics().preemptions
    for number, whole in enumerate(wholes):
        assert tokens_of(outputs, f"{number}") == whole


def test_a_stop_string_within_a_draft_ends_the_translation_there() -> None:
    whole = generated("marian", source(20), LENGTH)
    core = EngineCore(served("marian"))
    requested = translating("one", source(20), beginning("marian"), SOME, draft=whole[:8])
    core.submit(replace(requested, reply=Numbers(stop=whole[5])))
    outputs = run_out(core)
    assert end_of(outputs, "one").reason is FinishReason.STOP
    assert tokens_of(outputs, "one") == whole[: whole.index(whole[5])]
