"""A reply goes into the next prompt as the model spelled it, and the prompt's text stays the same."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.errors import PromptRejected
from engine.messages import Message
from engine.prompts.prompt import PromptBuilder
from engine.text.detokenizer import detokenizers_for
from engine.text.reply_text import Letters, Passage, ReplyCache, ReplyText, Tokenized, WrittenReply, changes
from engine.text.reply_text import spelled as spelled_by
from tests.engine.conftest import small_tokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
HELLO, MORE = Message("user", "hello there"), Message("user", "and more?")
AMPLE = 100_000


@cache
def tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    made = small_tokenizer()
    made.chat_template = template
    return made


def letter_by_letter(text: str) -> list[int]:
    return [token for letter in text for token in tokenizer().encode(letter, add_special_tokens=False)]


def oddly(text: str, seed: int) -> list[int]:
    """Some spelling of a text: its words' tokens or their letters', as chance has it."""
    chance = random.Random(seed)
    token_ids: list[int] = []
    for token in tokenizer().encode(text, add_special_tokens=False):
        split = chance.random() < 0.5
        token_ids += letters_of(str(tokenizer().convert_ids_to_tokens(token))) if split else [token]
    return token_ids


def letters_of(text: str) -> list[int]:
    """The tokens of a text's letters, which are written in the tokenizer's alphabet."""
    return [int(tokenizer().vocab[letter]) for letter in text]


def write(memory: ReplyCache, token_ids: Sequence[int]) -> str:
    """Let the model write a reply. Returns its text."""
    reply = ReplyText(detokenizers_for(tokenizer())(), (), memory.notes(""))
    pieces = [piece for token_id in token_ids for piece in reply.push(token_id).pieces]
    return "".join(map(str, (*pieces, *reply.flush())))


def spelled(memory: ReplyCache, *messages: Message, most: int = AMPLE, template: str = TEMPLATE) -> list[int]:
    own = memory.of("")
    assert own is not None
    return PromptBuilder(tokenizer(template)).prompt(messages, own=own, most=most).token_ids


def plain(*messages: Message, template: str = TEMPLATE) -> list[int]:
    return PromptBuilder(tokenizer(template)).token_ids(messages)


TEXTS = st.text(st.sampled_from("helo thruasing \n.é中👍🏽\u200d🇩🇪"), min_size=1)


@given(TEXTS, st.integers(0, 99), st.text(max_size=8))
def test_the_next_prompt_begins_with_what_was_computed(text: str, seed: int, question: str) -> None:
    assume(text.strip())  # a blank reply is left out of a prompt
    assume(text not in "user\n" and text not in "assistant\n")  # the template's own words
    memory, token_ids, requested = ReplyCache(), oddly(text, seed), Message("user", question)
    assert write(memory, token_ids) == text
    prompt = spelled(memory, requested, Message("assistant", text), MORE)
    computed = plain(requested) + token_ids
    assert prompt[: len(computed)] == computed
    assert tokenizer().decode(prompt) == tokenizer().decode(
        plain(requested, Message("assistant", text), MORE)
    )


@given(st.lists(st.integers(0, len(small_tokenizer()) - 1), min_size=1), st.integers(0, 40))
def test_the_text_stays_the_same_whatever_was_written_and_wherever_it_was_cut(
    token_ids: list[int], cut: int
) -> None:
    memory = ReplyCache()
    seen = write(memory, token_ids)[: cut or None]
    messages = (HELLO, Message("assistant", seen), MORE)
    if memory.of(""):
        assert tokenizer().decode(spelled(memory, *messages)) == tokenizer().decode(plain(*messages))


def test_a_cut_reply_is_taken_up_as_far_as_whole_tokens_were_seen() -> None:
    memory, token_ids = ReplyCache(), letter_by_letter("hello 👍 there")
    write(memory, token_ids)
    prompt = spelled(memory, HELLO, Message("assistant", "hello 👍 th"), MORE)
    computed = plain(HELLO) + letter_by_letter("hello 👍")
    assert prompt[: len(computed)] == computed


def test_half_a_characters_token_is_not_taken_up() -> None:
    memory, token_ids = ReplyCache(), letter_by_letter("hello 👍")[:-1]
    assert write(memory, token_ids) == "hello \ufffd"
    messages = (HELLO, Message("assistant", "hello "), MORE)
    assert tokenizer().decode(spelled(memory, *messages)) == tokenizer().decode(plain(*messages))


def test_a_reply_that_stands_in_the_templates_words_is_found_behind_them() -> None:
    memory, token_ids = ReplyCache(), letter_by_letter("ist")
    reply = Message("assistant", write(memory, token_ids))
    prompt = spelled(memory, HELLO, reply, MORE)
    computed = plain(HELLO) + token_ids
    assert prompt[: len(computed)] == computed


def test_every_remembered_reply_is_spelled_as_it_was_though_texts_repeat() -> None:
    memory = ReplyCache()
    first, second = letter_by_letter("hello there"), letter_by_letter("there, user")
    earlier = (HELLO, Message("assistant", write(memory, first)), Message("user", "there, user"))
    prompt = spelled(memory, *earlier, Message("assistant", write(memory, second)), MORE)
    computed = spelled(memory, *earlier) + second
    assert prompt[: len(computed)] == computed
    assert prompt[: len(plain(HELLO) + first)] == plain(HELLO) + first


def test_a_reply_that_the_tokenizer_spells_alike_is_forgotten() -> None:
    memory = ReplyCache()
    text = write(memory, tokenizer().encode("hello there", add_special_tokens=False))
    messages = (HELLO, Message("assistant", text), MORE)
    assert spelled(memory, *messages) == plain(*messages)
    assert len(memory) == 0


def test_a_longer_spelling_must_leave_the_new_reply_its_room() -> None:
    memory = ReplyCache()
    messages = (HELLO, Message("assistant", write(memory, letter_by_letter("hello there"))), MORE)
    longer = len(spelled(memory, *messages))
    assert len(spelled(memory, *messages, most=longer)) == longer
    assert spelled(memory, *messages, most=longer - 1) == plain(*messages)


def test_what_the_template_writes_otherwise_stays_as_the_tokenizer_spells_it() -> None:
    memory, shouts = ReplyCache(), TEMPLATE.replace("m.content", "m.content | upper")
    messages = (HELLO, Message("assistant", write(memory, letter_by_letter("hello there"))), MORE)
    assert spelled(memory, *messages, template=shouts) == plain(*messages, template=shouts)


def test_a_trimmed_end_costs_the_rest_of_the_reply_nothing() -> None:
    memory, trims = ReplyCache(), TEMPLATE.replace("m.content", "m.content | trim")
    token_ids = letter_by_letter("hello there")
    text = write(memory, [*token_ids, *letter_by_letter(" \n")])
    prompt = spelled(memory, HELLO, Message("assistant", text), MORE, template=trims)
    computed = plain(HELLO) + token_ids
    assert prompt[: len(computed)] == computed


def test_a_spelled_out_end_of_turn_changes_no_real_one() -> None:
    """A reply that writes `</s>` in letters is no end of a turn, and does not become the template's."""
    memory = ReplyCache()
    messages = (HELLO, Message("assistant", write(memory, letters_of("</s>"))), MORE)
    assert spelled(memory, *messages) == plain(*messages)
    drops = TEMPLATE.replace("{{ m.content }}", "{% if m.role == 'user' %}{{ m.content }}{% endif %}")
    assert spelled(memory, *messages, template=drops) == plain(*messages, template=drops)


@pytest.mark.parametrize("token_is_special", [True, False])
def test_a_special_token_and_its_letters_never_take_each_others_place(*, token_is_special: bool) -> None:
    """Though both read alike."""
    eos = tokenizer().eos_token_id
    letters, token = letters_of("a</s>b"), [*letters_of("a"), eos, *letters_of("b")]
    plain, written = (token, letters) if token_is_special else (letters, token)
    ends = [1, 2, 3, 4, 5, 6] if len(plain) == 6 else [1, 5, 6]
    prompt = Tokenized("a</s>b", plain, [0, *ends[:-1]], ends)
    kept = WrittenReply(
        "a</s>b", array("i", written), array("i", [1, 5, 6] if written == token else range(1, 7))
    )
    spell = Letters(tokenizer().decode, frozenset({eos}))
    changed = list(changes(prompt, [Passage("a</s>b", kept)], spell))
    assert spelled_by(plain, changed).count(eos) == plain.count(eos)
    same = WrittenReply("a</s>b", array("i", plain), array("i", ends))
    assert [change.token_ids for change in changes(prompt, [Passage("a</s>b", same)], spell)] == [plain]


def test_a_user_who_spells_a_special_token_gets_the_tokenizers_prompt() -> None:
    memory = ReplyCache()
    reply = Message("assistant", write(memory, letter_by_letter("hello there")))
    messages = (Message("user", "</s>"), reply, MORE)
    assert spelled(memory, *messages) == plain(*messages)


def test_an_empty_prompt_is_refused_however_it_is_spelled() -> None:
    memory = ReplyCache()
    reply = Message("assistant", write(memory, letter_by_letter("hello there")))
    with pytest.raises(PromptRejected, match="empty prompt"):
        spelled(memory, HELLO, reply, MORE, template="{{ '' }}")


def test_other_replies_change_nothing() -> None:
    memory = ReplyCache()
    write(memory, letter_by_letter("hello there"))
    messages = (HELLO, Message("assistant", "good day"), MORE)
    assert spelled(memory, *messages) == plain(*messages)
