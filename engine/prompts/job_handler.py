"""Makes one prompt at a time: messages go in, token ids come out, no more than the window takes. Knows no process."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.errors import PromptRejected
from engine.grammar.compiler import GrammarSource, TrialPostponed
from engine.grammar.grammar_writer import GrammarMaker
from engine.messages import Message
from engine.prompts.jobs import (
    Answer,
    BuildPrompt,
    BuiltPrompt,
    DecodeImage,
    Rejected,
    RememberReply,
    Stopped,
    TooLong,
    characters,
)
from engine.prompts.prompt import Prompt, PromptImages
from engine.reply_spec import ReplySpec
from engine.text.reply_memory import ReplyCache, TenantReplies

CHARS_A_TOKEN = 6
"""A text with more characters for each token of the window hardly fits, so its tokens are counted piece by piece first."""

PIECE_CHARS = 16_384

NO_GRAMMARS = "Replies of this model can't be held to a format: its tokenizer does not allow it."

CUT_TOKENS = 4
"""The most tokens that a cut adds: two pieces of a text may have so many more than the whole."""

log = logging.getLogger(__name__)


class PromptMaker(Protocol):
    """Makes the prompts of one model: `PromptBuilder` or `TranslationBuilder`."""

    def prompt(
        self, messages: Sequence[Message], spec: ReplySpec, own: TenantReplies | None, most: int
    ) -> Prompt:
        """Return a prompt. Raises PromptRejected."""
        ...

    def rendered(self, messages: Sequence[Message], spec: ReplySpec) -> str:
        """Return roughly the text of a prompt. Raises PromptRejected."""
        ...

    def count(self, text: str) -> int:
        """Return how many tokens a piece of that text has by itself. Raises PromptRejected."""
        ...

    def system_tokens(self, messages: Sequence[Message], prompt: Sequence[int], spec: ReplySpec) -> int:
        """Return how many of a prompt's first tokens are the system prompt's. Raises PromptRejected."""
        ...


class JobHandler:
    """Makes prompts, and remembers how replies were spelled, so that later prompts spell them alike."""

    def __init__(
        self,
        prompts: PromptMaker,
        grammars: GrammarMaker | None = None,
        prompt_images: PromptImages | None = None,
    ) -> None:
        """Take a maker of prompts. `grammars`: None if replies can't be held to any with this tokenizer.

        `prompt_images`: None if the model takes no images.
        """
        self._prompts = prompts
        self._prompt_images = prompt_images
        self._grammars = grammars
        self._memory = ReplyCache()

    def remember(self, message: RememberReply) -> None:
        """Remember a reply."""
        self._memory.keep(message.salt, message.reply())

    def decode_image(self, job: DecodeImage) -> Answer:
        """Return the pixels of an image."""
        return (
            Rejected("This model takes no images.")
            if self._prompt_images is None
            else self._prompt_images.tiles(job)
        )

    def build(self, job: BuildPrompt, stops: Callable[[], bool]) -> Answer:
        """Return the answer to a job. Calls `stops` now and then: True means that nobody waits for it any more."""
        try:
            return self._build(job, stops)
        except PromptRejected as error:
            return Rejected(str(error), error.field)
        except TrialPostponed:
            return Stopped()
        except Exception:
            # The one broad catch for a prompt, since a failure must not end the process for the others.
            log.exception("building a prompt failed")
            return Rejected("The prompt could not be prepared.")

    def _build(self, job: BuildPrompt, stops: Callable[[], bool]) -> Answer:
        if characters(job.messages, job.spec) > CHARS_A_TOKEN * job.window:
            tokens = self._least_tokens(job, stops)
            if tokens is None:
                return Stopped()
            if tokens >= job.window:
                return TooLong(tokens)
        prompt = self._prompt(job)
        tokens = len(prompt.source) + len(prompt.token_ids)
        grammar = self._grammar(job.spec, opened=bool(prompt.opened.strip()))
        if job.counts:
            return BuiltPrompt(tokens)
        if tokens >= job.window:
            return TooLong(tokens)
        shares = job.shares_system
        shared = self._prompts.system_tokens(job.messages, prompt.token_ids, job.spec) if shares else 0
        packed = array("i", prompt.token_ids).tobytes()
        source = array("i", prompt.source).tobytes()
        return BuiltPrompt(
            tokens,
            packed,
            shared,
            prompt.opened,
            prompt.continued,
            grammar,
            source,
            prompt.shown,
            array("i", prompt.draft).tobytes(),
        )

    def _grammar(self, spec: ReplySpec, *, opened: bool) -> GrammarSource | None:
        """Return the grammar of a reply. `opened`: its prompt has opened the thoughts. Raises PromptRejected."""
        if self._grammars is not None:
            return self._grammars.make(spec, opened=opened)
        if spec.format is not None or spec.tool_choice in {"required", "named"}:
            raise PromptRejected(NO_GRAMMARS, field="tools" if spec.format is None else "format")
        return None

    def _prompt(self, job: BuildPrompt) -> Prompt:
        """Return the prompt with replies as the model spelled them, unless that leaves the new reply too little room."""
        own = None if job.counts else self._memory.of(job.salt)
        return self._prompts.prompt(job.messages, job.spec, own, job.most)

    def _least_tokens(self, job: BuildPrompt, stops: Callable[[], bool]) -> int | None:
        """Return the least number of tokens of a prompt, read no further than the window takes. None: nobody waits."""
        tokens = 0
        for piece in self._pieces(job):
            if stops():
                return None
            tokens += max(0, self._prompts.count(piece) - CUT_TOKENS)
            if tokens >= job.window:
                break
        return tokens

    def _pieces(self, job: BuildPrompt) -> list[str]:
        text = self._prompts.rendered(job.messages, job.spec)
        return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]
