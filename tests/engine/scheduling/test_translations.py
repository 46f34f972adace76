"""Greedy translations are those of `model.generate`, token for token, whatever is encoded and written beside them."""

from __future__ import annotations

import pytest

from engine.messages import Finished, FinishReason, Output, Started
from engine.scheduling.core import EngineCore
from engine.step_layout import salted
from tests.engine.tiny_models import end_of, greedy, reply_to, run_out, tokens_of
from tests.engine.translators import (
    KINDS,
    POSITIONS,
    VOCABULARY,
    beginning,
    generated,
    served,
    source,
    translating,
)

LENGTH = 14
SOME = greedy(max_new_tokens=LENGTH)


def text_of(number: int) -> list[int]:
    """Sources of all lengths: within a page, of a whole one, of several."""
    return source(1 + 7 * number % 50, salt=number)


@pytest.mark.usefixtures("cpu_operations")
def test_thirty_two_at_once_are_those_of_generate_though_others_are_cancelled() -> None:
    """Every third one is cancelled somewhere: before it is encoded, while others are, in the middle of its words."""
    core = EngineCore(served("marian", max_batch=32, kv_tokens=32 * 128))
    outputs: list[Output] = []
    for number in range(48):
        core.submit(translating(f"{number}", text_of(number), beginning("marian"), SOME))
        if number % 3 == 2:
            core.cancel(f"{number - number % 4}" if number % 4 == 3 else f"{number}")
        if number % 5 == 0:
            outputs += core.step()
    outputs += run_out(core)
    ends = [output for output in outputs if isinstance(output, Finished)]
    whole = [end.request_id for end in ends if end.reason is not FinishReason.CANCELLED]
    assert len(ends) == 48
    assert len(whole) >= 32
    for name in whole:
        assert tokens_of(outputs, name) == generated("marian", text_of(int(name)), LENGTH)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_grows_is_translated_behind_what_was_published(kind: str) -> None:
    core, text, published = EngineCore(served(kind)), source(40), list[int]()
    for length in (3, 16, 17, 40):
        tokens = reply_to(core, translating(f"{length}", text[:length], beginning(kind, published), SOME))
        assert tokens == generated(kind, text[:length], LENGTH, published)
        published += tokens[:2]


def test_the_pages_of_a_source_and_a_prefix_are_kept() -> None:
    """Who asks for more of a translation has nothing encoded, and computes only what is new."""
    core, text = EngineCore(served("marian")), text_of(6)
    whole = generated("marian", text, LENGTH)
    run_out(core, translating("first", text, beginning("marian"), SOME))
    started = beginning("marian", whole[:8])
    outputs = run_out(core, translating("more", text, started, SOME))
    assert tokens_of(outputs, "more") == generated("marian", text, LENGTH, whole[:8])
    reported = next(output for output in outputs if isinstance(output, Started))
    assert reported.prompt_tokens == len(text) + len(started)
    assert reported.cached_tokens == len(text) + len(started) - 1


def test_what_is_kept_of_a_source_serves_no_longer_one() -> None:
    """Each word of a source sees all others: the same first words of a longer text have other keys and values."""
    core, text = EngineCore(served("marian")), source(40)
    run_out(core, translating("short", text[:32], beginning("marian"), SOME))
    outputs = run_out(core, translating("long", text, beginning("marian"), SOME))
    assert end_of(outputs, "long").cached_tokens == 0
    assert tokens_of(outputs, "long") == generated("marian", text, LENGTH)
    assert salted("", text[:32]) != salted("", text)


def test_a_source_that_goes_on_as_another_ones_page_does_is_another_source() -> None:
    """What lies behind a source in its last page reads as tokens of number 0."""
    core, text = EngineCore(served("marian")), source(30)
    core.submit(translating("short", text, beginning("marian"), SOME))
    outputs = run_out(core, translating("long", [*text, 0, 0], beginning("marian"), SOME))
    core.submit(translating("again", [*text, 0, 0], beginning("marian"), SOME))
    outputs += run_out(core, translating("short again", text, beginning("marian"), SOME))
    for name, requested in (("short", text), ("short again", text), ("again", [*text, 0, 0])):
        assert tokens_of(outputs, name) == generated("marian", requested, LENGTH)


def test_a_source_of_which_a_part_was_forgotten_is_encoded_anew() -> None:
    core, text = EngineCore(served("marian")), source(40)
    run_out(core, translating("first", text, beginning("marian"), SOME))
    prefixes, pool = core._scheduler._prefixes, core._scheduler.pool
    known = prefixes.find(salted("", text), [*text, *[0] * 8, *beginning("marian"), 1])
    pool.evict(known.pages[1])
    outputs = run_out(core, translating("second", text, beginning("marian"), SOME))
    assert end_of(outputs, "second").cached_tokens == 0
    assert tokens_of(outputs, "second") == generated("marian", text, LENGTH)


def test_translations_that_outgrow_the_memory_are_taken_up_again() -> None:
    core = EngineCore(served("marian", kv_tokens=224))
    texts = [source(30, salt=number) for number in range(4)]
    long = greedy(max_new_tokens=40)
    outputs = run_out(
        core,
        *(translating(f"{number}", text, beginning("marian"), long) for number, text in enumerate(texts)),
    )
    assert core.statistics().preemptions
    for number, text in enumerate(texts):
        assert tokens_of(outputs, f"{number}") == generated("marian", text, 40)


def test_a_translation_that_is_full_ends_as_generate_ends_it() -> None:
    """mBART's last token is an end token, whatever it would have said."""
    for kind in ("mbart", "marian"):
        core = EngineCore(served(kind))
        long = greedy(max_new_tokens=200)
        outputs = run_out(core, translating("full", text_of(3), beginning(kind), long))
        room = POSITIONS - len(beginning(kind))
        expected = generated(kind, text_of(3), room)
        assert tokens_of(outputs, "full") == expected
        assert end_of(outputs, "full").reason in {FinishReason.LENGTH, FinishReason.STOP}


PHASES = {
    "waits": lambda _: True,
    "encoded": lambda request: request.computed >= request.first > 0,
    "prefix": lambda request: request.first < request.computed < request.prompt_tokens,
    "writes": lambda request: request.generated > 2,
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_takes_effect_before_the_next_step_in_every_phase(phase: str) -> None:
    """No step is begun for it, its pages are free at once, and those beside it notice nothing."""
    core = EngineCore(served("marian"), step_target_s=1e-9)  # chunks of the smallest size
    outputs = run_out(core, translating("warm", source(60), beginning("marian"), SOME))
    core.submit(translating("beside", text_of(2), beginning("marian"), SOME))
    core.submit(translating("cut", source(20), beginning("marian", [23, 42, 64] * 10), SOME))
    request = core._active["cut"].request
    while not PHASES[phase](request):
        outputs += core.step()
    assert (request.steps > 0) == (phase != "waits")
    core.cancel("cut")
    outputs += core.step()
    end = end_of(outputs, "cut")
    assert (end.reason, end.steps_after) == (FinishReason.CANCELLED, 0)
    assert core.statistics().steps_after_cancel == 0
    outputs += run_out(core)
    assert tokens_of(outputs, "beside") == generated("marian", text_of(2), LENGTH)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ([], "There is nothing to translate."),
        (
            source(POSITIONS + 1),
            f"The text to translate has {POSITIONS + 1} tokens; the model reads {POSITIONS} at once.",
        ),
        ([VOCABULARY], f"The text to translate has a token id outside of the vocabulary of {VOCABULARY}."),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_for_its_sender_alone(text: list[int], why: str) -> None:
    core = EngineCore(served("marian"))
    core.submit(translating("beside", text_of(2), beginning("marian"), SOME))
    outputs = run_out(core, translating("bad", text, beginning("marian"), SOME))
    assert end_of(outputs, "bad").error == why
    assert tokens_of(outputs, "beside") == generated("marian", text_of(2), LENGTH)
