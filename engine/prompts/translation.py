"""Makes the prompts of a model that translates: the last message is the source, and the prefix begins the translation.

Earlier messages of a conversation are left out, since such models read one text at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import PromptRejected
from engine.loading.languages import TranslationTokenizer
from engine.messages import Message
from engine.prompts.prompt import Prompt
from engine.reply_spec import PLAIN, ReplySpec, Translation
from engine.text.reply_memory import TenantReplies

FEATURES = ("translate",)

_HERE = Translation()


class TranslationBuilder:
    """Takes the place of `engine.prompts.prompt.PromptBuilder`. For one thread at a time."""

    features = FEATURES

    def __init__(self, translation_tokenizer: TranslationTokenizer) -> None:
        """Take the languages of a model."""
        self._translation_tokenizer = translation_tokenizer

    @classmethod
    def of(cls, model: str, tokenizer: Any) -> TranslationBuilder:
        """Return the builder for a model by its hub name or folder, and its tokenizer."""
        return cls(TranslationTokenizer.of(model, tokenizer))

    def prompt(
        self,
        messages: Sequence[Message],
        spec: ReplySpec = PLAIN,
        own: TenantReplies | None = None,  # noqa: ARG002 - the tokenizer spells translations
        most: int = 0,
    ) -> Prompt:
        """Return the source of a translation, the tokens that it begins with, and its draft. Raises PromptRejected."""
        _refuse_others(spec)
        translation = spec.translation or _HERE
        source = self._translation_tokenizer.source(
            _text_of(messages), translation.source, translation.target, unfinished=translation.unfinished
        )
        most = self._translation_tokenizer.source_tokens
        if len(source) > most:
            raise PromptRejected(
                f"The text to translate has {len(source)} tokens; the model reads {most} at once. Send it in parts.",
                field="content",
            )
        begun, continued = self._translation_tokenizer.beginning(translation.target, translation.prefix)
        draft = self._translation_tokenizer.draft(translation.prefix, translation.draft)
        return Prompt(begun, continued=continued, source=source, draft=draft)

    def rendered(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> str:
        """Return the text that is tokenized. Raises PromptRejected."""
        prefix = spec.translation.prefix if spec.translation is not None else ""
        return _text_of(messages) + prefix

    def count(self, text: str) -> int:
        """Return how many tokens a piece of text has by itself."""
        return self._translation_tokenizer.count(text)

    def system_tokens(
        self,
        messages: Sequence[Message],  # noqa: ARG002 - it reads none
        prompt: Sequence[int],  # noqa: ARG002 - as above
        spec: ReplySpec = PLAIN,  # noqa: ARG002 - as above
    ) -> int:
        """Return 0, since a translation has no system prompt."""
        return 0


def _text_of(messages: Sequence[Message]) -> str:
    text = messages[-1].content if messages and messages[-1].role == "user" else ""
    if not text.strip():
        raise PromptRejected("There is nothing to translate: the last message has no text.", field="content")
    return text


def _refuse_others(spec: ReplySpec) -> None:
    """Raise PromptRejected for parts of a spec that only chat models follow."""
    if spec.shown_tools:
        raise PromptRejected("The model translates; it can't be shown tools.", field="tools")
    if spec.format is not None:
        raise PromptRejected("The model translates; it can't be held to a format.", field="format")
    if spec.continues:
        raise PromptRejected("A translation goes on from its prefix, not from a reply.", field="continues")
