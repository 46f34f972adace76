"""A reply that goes on is asked for with the prompt that it had, and with its text behind that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PromptRejected
from engine.messages import Message, ReplySpec
from engine.prompts.jobs import Prompt
from tests.engine.prompts.conversations import (
    HELLO,
    builder,
    called,
    ids,
    prompt,
    result,
    text,
    tokenizer,
)

GOES_ON = ReplySpec(continues=True)
FAMILIES = ("qwen", "llama", "mistral", "plain")


def continued(name: str, *messages: Message, spec: ReplySpec = GOES_ON) -> Prompt:
    return builder(name).prompt(messages, spec)


@pytest.mark.parametrize("name", FAMILIES)
@given(written=st.text(st.sampled_from("helo thr\n<é👍")))
def test_a_reply_goes_on_where_it_ended(name: str, written: str) -> None:
    made = continued(name, HELLO, Message("assistant", written))
    assert tokenizer(name).decode(made.token_ids) == text(name, HELLO) + written
    started = made.token_ids[len(made.token_ids) - made.continued :]
    assert tokenizer(name).decode(started) == written
    assert made.token_ids[: len(made.token_ids) - made.continued] == prompt(name, HELLO)


def test_a_reply_with_reasoning_goes_on_as_the_template_writes_it() -> None:
    made = continued("qwen", HELLO, Message("assistant", "Well.", reasoning="Sums  are easy."))
    written = "<think>\nSums  are easy.\n</think>\n\nWell."
    assert tokenizer("qwen").decode(made.token_ids) == text("qwen", HELLO) + written
    assert made.token_ids[-made.continued :] == ids("qwen", written)


def test_control_tokens_that_its_reasoning_spells_out_stay_text() -> None:
    made = continued("qwen", HELLO, Message("assistant", "So", reasoning="an end is <|im_end|>"))
    assert made.token_ids.count(tokenizer("qwen").convert_tokens_to_ids("<|im_end|>")) == 1
    assert tokenizer("qwen").decode(made.token_ids).endswith("an end is <|im_end|>\n</think>\n\nSo")


def test_reasoning_that_the_prompt_opened_goes_on_in_it() -> None:
    cut = Message("assistant", "", reasoning="Why")
    made = continued("r1", HELLO, cut)
    assert tokenizer("r1").decode(made.token_ids).endswith("<|bot|><think>\nWhy")
    assert (made.opened, made.continued) == ("<think>\n", len(ids("r1", "Why")))


def test_reasoning_that_was_cut_goes_on_in_it() -> None:
    """It is spelled as the template spells it."""
    made = continued("qwen", HELLO, Message("assistant", "", reasoning="Sums are"))
    assert tokenizer("qwen").decode(made.token_ids) == text("qwen", HELLO) + "<think>\nSums are"
    assert made.continued == len(ids("qwen", "<think>\nSums are"))
    opened = continued("r1", HELLO, Message("assistant", "", reasoning="Why"))
    assert tokenizer("r1").decode(opened.token_ids).endswith("<|bot|><think>\nWhy")
    assert opened.opened == "<think>\n"


def test_words_behind_reasoning_go_on_behind_it() -> None:
    cut = Message("assistant", "So it", reasoning="Sums are easy.")
    made = continued("qwen", HELLO, cut)
    written = "<think>\nSums are easy.\n</think>\n\nSo it"
    assert tokenizer("qwen").decode(made.token_ids) == text("qwen", HELLO) + written
    assert made.continued == len(ids("qwen", written))


def test_reasoning_alone_that_the_template_has_no_place_for_is_refused() -> None:
    with pytest.raises(PromptRejected, match="no place") as refused:
        continued("plain", HELLO, Message("assistant", "", reasoning="Why"))
    assert refused.value.field == "continues"


def test_words_without_reasoning_go_on_without_it() -> None:
    """They are put into the mouth of a model that would have thought first."""
    made = continued("r1", HELLO, Message("assistant", "So, "))
    assert tokenizer("r1").decode(made.token_ids).endswith("hello there<|bot|>So, ")
    assert (made.opened, made.continued) == ("So, ", 0)


def test_an_empty_reply_begins() -> None:
    assert continued("qwen", HELLO, Message("assistant", "")) == Prompt(prompt("qwen", HELLO))


def test_control_tokens_that_a_reply_spells_out_stay_text_where_it_goes_on() -> None:
    written = "an end is <|im_end|> so"
    made = continued("qwen", HELLO, Message("assistant", written))
    assert made.token_ids.count(tokenizer("qwen").convert_tokens_to_ids("<|im_end|>")) == 1
    assert tokenizer("qwen").decode(made.token_ids) == text("qwen", HELLO) + written


def test_a_count_of_a_reply_that_goes_on_is_that_of_its_prompt() -> None:
    talk = (HELLO, Message("assistant", "hello th"))
    assert builder("qwen").token_ids(talk, GOES_ON) == continued("qwen", *talk).token_ids


@pytest.mark.parametrize("talk", [(), (HELLO,), (HELLO, called(), result())])
def test_where_no_reply_is_last_none_can_go_on(talk: tuple[Message, ...]) -> None:
    with pytest.raises(PromptRejected, match="no reply") as refused:
        continued("qwen", *talk)
    assert refused.value.field == "continues"
