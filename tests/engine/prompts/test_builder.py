"""A prompt is read as far as the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.messages import Message, ReplySpec, Tool
from engine.prompts.jobs import BuildPrompt, BuiltPrompt, Prompt
from engine.prompts.prompt import PIECE_CHARS, JobHandler, PromptBuilder
from engine.text.formats import detect_format
from tests.engine.chat_families import FAMILIES
from tests.engine.conftest import small_tokenizer

WINDOW = 4096


def saying(content: str) -> tuple[Message, ...]:
    return (Message("user", content),)


def built(builder: JobHandler, messages: tuple[Message, ...], window: int) -> BuiltPrompt:
    made = builder.build(BuildPrompt(messages, window))
    assert isinstance(made, BuiltPrompt)
    return made


class Noting(PromptBuilder):
    """Notes how many characters were tokenized in pieces, and how often a whole prompt was."""

    def __init__(self) -> None:
        super().__init__(small_tokenizer())
        self.chars = self.whole = 0

    def count(self, text: str) -> int:
        self.chars += len(text)
        return super().count(text)

    def prompt(self, messages: Sequence[Message], *how: Any) -> Prompt:
        self.whole += 1
        return super().prompt(messages, *how)


def test_a_prompt_that_cannot_fit_is_not_read_to_its_end() -> None:
    prompts = Noting()
    made = JobHandler(prompts).build(BuildPrompt(saying("word " * 1_000_000), WINDOW, counts=True))
    assert isinstance(made, BuiltPrompt)
    assert made.tokens >= WINDOW
    assert (prompts.whole, prompts.chars) == (0, PIECE_CHARS)


def test_a_prompt_at_the_window_is_too_long_and_one_below_fits() -> None:
    builder = JobHandler(PromptBuilder(small_tokenizer()))
    whole = builder.build(BuildPrompt(saying("hello there"), WINDOW, counts=True))
    assert isinstance(whole, BuiltPrompt)
    assert builder.build(BuildPrompt(saying("hello there"), whole.tokens)) == BuiltPrompt(whole.tokens)
    made = builder.build(BuildPrompt(saying("hello there"), whole.tokens + 1))
    assert isinstance(made, BuiltPrompt)
    assert made.prompt is not None
    assert len(made.prompt.token_ids) == whole.tokens
    long = saying(
        "hello there user assistant system" * 1000
    )  # twenty characters a token: more than most have
    window = len(PromptBuilder(small_tokenizer()).token_ids(long)) + 1
    assert built(builder, long, window // 2).prompt is None
    assert built(builder, long, window).prompt is not None


def test_a_prompt_is_made_of_the_spec_too_and_tells_what_belongs_to_the_reply() -> None:
    tokenizer = FAMILIES["qwen"]()
    builder = JobHandler(PromptBuilder(tokenizer, detect_format(tokenizer)))
    spec = ReplySpec(tools=(Tool("add"),), continues=True)
    talk = (*saying("hello"), Message("assistant", "So, "))
    made = builder.build(BuildPrompt(talk, WINDOW, spec))
    assert isinstance(made, BuiltPrompt)
    assert made.prompt is not None
    token_ids = made.prompt.token_ids
    assert tokenizer.decode(token_ids[-made.prompt.continued :]) == "So, "
    assert "add" in tokenizer.decode(token_ids)
    counted = builder.build(BuildPrompt(talk, WINDOW, spec, counts=True))
    assert counted == BuiltPrompt(made.tokens)
    opens = FAMILIES["r1"]()
    made = JobHandler(PromptBuilder(opens, detect_format(opens))).build(BuildPrompt(saying("hello"), WINDOW))
    assert isinstance(made, BuiltPrompt)
    assert made.prompt is not None
    assert (made.prompt.opened, made.prompt.continued) == ("<think>\n", 0)


def test_tools_that_cannot_fit_are_not_read_to_their_end() -> None:
    tokenizer = FAMILIES["qwen"]()
    builder = JobHandler(PromptBuilder(tokenizer, detect_format(tokenizer)))
    spec = ReplySpec(tools=(Tool("add", "word " * 100_000),))
    made = builder.build(BuildPrompt(saying("hello"), WINDOW, spec))
    assert isinstance(made, BuiltPrompt)
    assert WINDOW <= made.tokens < 3 * PIECE_CHARS
