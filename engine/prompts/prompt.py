"""Turns messages into the token ids of a prompt, with the chat template of the model's tokenizer."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Any, NamedTuple

import jinja2

from engine.errors import PromptRejected
from engine.images.tiling import IMAGE
from engine.messages import Message
from engine.parsing.formats import ReplyFormat
from engine.prompts.images import NO_PLACE, PromptImages, images_of
from engine.prompts.renderer import Rendered, Renderer
from engine.reply_spec import PLAIN, ReplySpec
from engine.text.reply_memory import TenantReplies
from engine.text.retokenization import Letters, Passage, Tokenized, changes, spelled

_SYSTEMS_KNOWN = 64

_ATTEMPTS = 8
"""How many ends of a remembered reply are tried when it is continued. Some of them are within a character."""


class Prompt(NamedTuple):
    """A prompt. `opened`: words of the template at its end that belong to the reply.

    `continued`: the last so many tokens are the beginning of a reply that goes on. `source`: what is translated, if
    something is. `shown`: the digests of its images, and where the tokens of each one's tiles begin. `draft`: how the reply
    may begin.
    """

    token_ids: list[int]
    opened: str = ""
    continued: int = 0
    source: Sequence[int] = ()
    shown: tuple[tuple[str, tuple[int, ...]], ...] = ()
    draft: Sequence[int] = ()


class PromptBuilder:
    """Renders and tokenizes prompts for one tokenizer. For one thread at a time."""

    def __init__(
        self, tokenizer: Any, format_: ReplyFormat | None = None, prompt_images: PromptImages | None = None
    ) -> None:
        """Take a transformers tokenizer with a chat template, and how its model writes replies; try what both support.

        `prompt_images`: None if the model takes no images.
        """
        self._tokenizer = tokenizer
        self._prompt_images = prompt_images
        self._renderer = Renderer(tokenizer, format_, takes_images=prompt_images is not None)
        self._letters = Letters(self._decode, self._renderer.tokens.ids)
        self._system_tokens: OrderedDict[str, list[int]] = OrderedDict()

    @property
    def features(self) -> tuple[str, ...]:
        """The parts of a `ReplySpec` that its prompts follow."""
        return self._renderer.features

    def token_ids(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> list[int]:
        """Return the tokens of `prompt`, as the tokenizer spells them. Raises PromptRejected."""
        return self.prompt(messages, spec).token_ids

    def prompt(
        self,
        messages: Sequence[Message],
        spec: ReplySpec = PLAIN,
        own: TenantReplies | None = None,
        most: int = 0,
    ) -> Prompt:
        """Return the prompt that asks for the assistant's reply to these messages, or for more of the last one.

        The template writes every control token itself, the first one included. If anybody else spells one out, even the
        assistant, it is plain text: what a model was made to say must forge no role in its next turn. If the template
        has no system role, the system prompt goes in front of the first user message.

        `own`: replies that are spelled as the model wrote them, the same text in other tokens, if the prompt then has no
        more tokens than otherwise, or than `most`. A reply that the tokenizer spells alike is forgotten there.

        A raw prompt is the messages' own text, in which control tokens count, since it has nobody else's words. It begins
        as the tokenizer begins a text. Raises PromptRejected.
        """
        if spec.translation is not None:
            raise PromptRejected("This model does not translate; name one that does.", field="target")
        if spec.raw:
            return self._raw(messages)
        if self._prompt_images is not None:
            messages = self._prompt_images.known(messages)
        with _refusals():
            rendered = self._looked_up(self._renderer.render(messages, spec), messages)
            made = plain = self._plain(rendered)
            is_forged = not self._is_the_templates(plain, rendered)
            if is_forged:
                made = plain = self._apart(rendered)
            if own is not None and not is_forged and self._tokenizer.is_fast:
                made = self._spelled(rendered, plain, own)
        return self._placed(
            made if len(made.token_ids) <= max(most, len(plain.token_ids)) else plain, messages
        )

    def _looked_up(self, rendered: Rendered, messages: Sequence[Message]) -> Rendered:
        """Return a prompt with the words for its images. Raises PromptRejected."""
        if self._prompt_images is None or not (images := images_of(messages)):
            return rendered
        tokens, words = self._renderer.tokens, self._prompt_images.words(images)
        disguised = tokens.replaced(rendered.disguised[0], IMAGE, words)
        if disguised is None:
            raise PromptRejected(NO_PLACE)
        text = tokens.replaced(rendered.text, IMAGE, words)
        if text is None:  # people's texts have the word, too
            text = tokens.true(disguised)
        return rendered._replace(text=text, disguised=(disguised, rendered.disguised[1]))

    def _placed(self, prompt: Prompt, messages: Sequence[Message]) -> Prompt:
        """Return a prompt with the places of its images. Raises PromptRejected."""
        if self._prompt_images is None or not (images := images_of(messages)):
            return prompt
        token = self._tokenizer.convert_tokens_to_ids(IMAGE)
        starts = self._prompt_images.starts(prompt.token_ids, images, token)
        return prompt._replace(
            shown=tuple((image.digest, of_one) for image, of_one in zip(images, starts, strict=True))
        )

    def rendered(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> str:
        """Return the text that the template makes of messages, which is never longer than the prompt's text.

        Raises PromptRejected.
        """
        if spec.raw:
            return _text_of(messages)
        with _refusals():
            rendered = self._renderer.render(messages, spec)
        return rendered.text + rendered.begun

    def count(self, text: str) -> int:
        """Return how many tokens a piece of a prompt has by itself. Raises PromptRejected."""
        with _refusals():
            return len(self._encoded(text))

    def system_tokens(
        self, messages: Sequence[Message], prompt: Sequence[int], spec: ReplySpec = PLAIN
    ) -> int:
        """Return how many of the prompt's first tokens are the system prompt's, whatever the user writes after it.

        It is 0 without a system prompt, or if the template puts that elsewhere in longer conversations. Tokens behind
        something of one user's request, such as tools, are not counted. Raises PromptRejected.
        """
        if not messages or messages[0].role != "system":
            return 0
        beginning = self._system_beginning(messages[0])
        known = _common(beginning, prompt)
        return known if known == len(beginning) or spec.shown_tools or spec.template else 0

    def _system_beginning(self, message: Message) -> list[int]:
        system = message.content
        if system not in self._system_tokens:
            ways = [self.token_ids([message, Message("user", texts)]) for texts in ("Hello.", "One")]
            self._system_tokens[system] = ways[0][: _common(*ways)]
            while len(self._system_tokens) > _SYSTEMS_KNOWN:
                self._system_tokens.popitem(last=False)
        return self._system_tokens[system]

    def _raw(self, messages: Sequence[Message]) -> Prompt:
        with _refusals():
            token_ids: list[int] = self._tokenizer(_text_of(messages))["input_ids"]
        return Prompt(_some(token_ids))

    def _plain(self, rendered: Rendered) -> Prompt:
        token_ids, begun = _some(self._encoded(rendered.text)), self._encoded_behind(rendered.begun)
        return Prompt(token_ids + begun, rendered.opened, len(begun))

    def _is_the_templates(self, prompt: Prompt, rendered: Rendered) -> bool:
        """Return whether the template wrote all of the prompt's control tokens."""
        tokens = self._renderer.tokens
        return tokens.are_the_templates(
            prompt.token_ids, rendered.text + rendered.begun, "".join(rendered.disguised)
        )

    def _apart(self, rendered: Rendered) -> Prompt:
        """Return a prompt in which the control tokens that the template did not write are plain text."""
        text, begun = rendered.disguised
        token_ids, behind = _some(self._pieces(text)), self._pieces(begun, behind=True)
        return Prompt(token_ids + behind, rendered.opened, len(behind))

    def _pieces(self, disguised: str, *, behind: bool = False) -> list[int]:
        """Return the tokens of a disguised text, piece by piece. `behind`: it follows another text."""
        tokens, made = self._renderer.tokens, list[int]()
        for token, text in tokens.parts(disguised):
            whole = self._encoded(token + text) if token or not behind else self._encoded_behind(text)
            known = [tokens.id_of[token]] if token else []
            is_apart = whole[: len(known)] == known and tokens.are_text(whole[len(known) :], text)
            made += whole if is_apart else known + self._as_text(text)
        return made

    def _as_text(self, text: str) -> list[int]:
        """Return the tokens of a text without any control token: such a one is cut in two, and spelled in parts."""
        made, cuts = list[int](), [text]
        while cuts:
            piece = cuts.pop()
            token_ids = self._encoded_behind(piece)
            if self._renderer.tokens.are_text(token_ids, piece):
                made += token_ids
            elif len(piece) > 1:
                cuts += reversed(self._cut(piece))
        return made

    def _cut(self, text: str) -> list[str]:
        """Return a text in pieces that end in the middle of its control tokens."""
        middles: list[int] = []
        if self._tokenizer.is_fast:
            found = self._tokenized(text)
            spans = zip(found.token_ids, found.starts, found.ends, strict=True)
            controls = [(start, end) for id_, start, end in spans if id_ in self._renderer.tokens.ids]
            middles = sorted({(start + end) // 2 for start, end in controls if end - start > 1})
        ends = [*(middles or [len(text) // 2]), len(text)]
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _spelled(self, rendered: Rendered, plain: Prompt, own: TenantReplies) -> Prompt:
        """Return the prompt with the replies that are remembered in their own tokens."""
        token_ids = plain.token_ids[: len(plain.token_ids) - plain.continued]
        passages = [Passage(text, own.recall(text) if is_own else None) for text, is_own in rendered.texts]
        if any(passage.reply for passage in passages):
            token_ids = self._respelled(self._tokenized(rendered.text), passages, own)
        begun = self._remembered(rendered.begun, own)
        return Prompt(token_ids + begun, plain.opened, len(begun))

    def _respelled(self, plain: Tokenized, passages: Sequence[Passage], own: TenantReplies) -> list[int]:
        changed = list(changes(plain, passages, self._letters))
        for start, end, token_ids, reply in changed:
            if len(token_ids) == len(reply.token_ids) and token_ids == plain.token_ids[start:end]:
                own.forget(reply)
        return spelled(plain.token_ids, changed)

    def _remembered(self, raw: str, own: TenantReplies) -> list[int]:
        """Return the beginning of a reply that is continued, in its own tokens as far as they are remembered."""
        reply = own.recall(raw) if raw else None
        if reply is not None:
            counts = range(bisect_right(reply.ends, len(raw)), 0, -1)
            for count in islice(counts, _ATTEMPTS):
                token_ids, end = reply.token_ids[:count].tolist(), reply.ends[count - 1]
                if self._decode(token_ids) == raw[:end]:
                    return token_ids + self._encoded_behind(raw[end:])
        return self._encoded_behind(raw)

    def _tokenized(self, text: str) -> Tokenized:
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets: list[tuple[int, int]] = encoded["offset_mapping"]
        return Tokenized(
            text, encoded["input_ids"], [start for start, _ in offsets], [end for _, end in offsets]
        )

    def _encoded(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def _encoded_behind(self, text: str) -> list[int]:
        """Return the tokens of a text that follows another one, so that the tokenizer puts no space before it."""
        if not text:
            return []
        before = self._encoded("\n")
        behind = self._encoded(f"\n{text}")
        is_apart = behind[: len(before)] == before
        return behind[len(before) :] if is_apart else self._encoded(text)

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return text


def _text_of(messages: Sequence[Message]) -> str:
    return "".join(message.content for message in messages)


def _some(token_ids: list[int]) -> list[int]:
    if not token_ids:
        raise PromptRejected("The messages make an empty prompt.")
    return token_ids


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many of the first tokens of two prompts are the same."""
    return sum(1 for _ in takewhile(bool, (one == other for one, other in zip(first, second, strict=False))))


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise PromptRejected for what a template or a tokenizer raises."""
    try:
        yield
    except jinja2.TemplateError as error:
        raise PromptRejected(f"The model's chat template refused the messages: {error}") from error
    except RecursionError as error:
        raise PromptRejected("The messages or the tools are nested too deeply.") from error
    except (ValueError, TypeError, UnicodeError) as error:
        raise PromptRejected(f"The model's tokenizer refused the messages: {error}") from error
