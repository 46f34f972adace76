"""Messages into the token ids of a prompt, by the chat template of the model's tokenizer."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import jinja2
import msgspec

from engine.errors import PromptRejected
from engine.messages import Message
from engine.text.reply_memory import OwnReplies
from engine.text.spelling import Letters, Passage, Tokenized, changes, spelled

_SYSTEMS_KNOWN = 64
_PROBE = "Midstream asks whether this line is kept."


class PromptBuilder:
    """Renders and tokenizes prompts for one tokenizer. For one thread at a time."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a transformers tokenizer that has a chat template, and try whether it knows a system role."""
        self._tokenizer = tokenizer
        special = (id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._control_tokens = _control_tokens(tokenizer)
        self._letters = Letters(self._decode, frozenset(special))
        self._can_sanitize = (
            "sanitize_control_tokens" in inspect.signature(tokenizer.apply_chat_template).parameters
        )
        self.folds_system = not self._keeps_system_role()
        self._system_tokens: OrderedDict[str, list[int]] = OrderedDict()

    def token_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt that asks for the assistant's reply to these messages.

        The template writes every control token itself, the first one included. One that any message spells out, the
        assistant's included, is read as plain text: what a model was made to say must forge no role in its next turn.
        Where the template has no system role, that prompt goes in front of the first user message. Raises PromptRejected.
        """
        if self.folds_system:
            messages = fold_system(messages)
        with _refusals():
            token_ids: list[int] = self._apply(messages, tokenize=True, **self._sanitizing(messages))
        return _some(token_ids)

    def rendered(self, messages: Sequence[Message]) -> str:
        """Return what the template makes of messages: a little shorter than the prompt's text, never longer.

        Raises PromptRejected.
        """
        with _refusals():
            text: str = self._apply(fold_system(messages) if self.folds_system else messages, tokenize=False)
        return text

    def count(self, text: str) -> int:
        """Return how many tokens a piece of a prompt has by itself. Raises PromptRejected."""
        with _refusals():
            return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def spelled_ids(self, messages: Sequence[Message], own: OwnReplies, *, most: int) -> list[int]:
        """Return the prompt with its replies spelled as the model wrote them: the same text in other tokens.

        As `token_ids` where nothing fitting is remembered, the tokenizer can't say which characters a token stands for,
        or the other spelling takes more tokens than that one and than `most`. A reply that the tokenizer spells alike
        is forgotten. Raises PromptRejected.
        """
        folded = fold_system(messages) if self.folds_system else messages
        passages = [
            Passage(each.content, own.recall(each.content) if each.role == "assistant" else None)
            for each in folded
        ]
        known = any(passage.reply for passage in passages)
        if not (known and self._tokenizer.is_fast) or self._sanitizing(folded):
            return self.token_ids(messages)
        with _refusals():
            plain = self._tokenized(folded)
        _some(plain.token_ids)
        changed = list(changes(plain, passages, self._letters))
        for start, end, token_ids, reply in changed:
            if len(token_ids) == len(reply.token_ids) and token_ids == plain.token_ids[start:end]:
                own.forget(reply)
        made = spelled(plain.token_ids, changed)
        return made if len(made) <= max(most, len(plain.token_ids)) else plain.token_ids

    def system_tokens(self, messages: Sequence[Message], prompt: Sequence[int]) -> int:
        """Return how many of the prompt's first tokens are the system prompt's, whatever the user says after it.

        0 where there is none, or where the template puts it elsewhere in a longer talk. Raises PromptRejected.
        """
        if not messages or messages[0].role != "system":
            return 0
        system = messages[0].content
        if system not in self._system_tokens:
            ways = [self.token_ids([messages[0], Message("user", said)]) for said in ("Hello.", "One")]
            same = (first == second for first, second in zip(*ways, strict=False))
            self._system_tokens[system] = ways[0][: sum(takewhile(bool, same))]
            while len(self._system_tokens) > _SYSTEMS_KNOWN:
                self._system_tokens.popitem(last=False)
        beginning = self._system_tokens[system]
        return len(beginning) if list(prompt[: len(beginning)]) == beginning else 0

    def _tokenized(self, messages: Sequence[Message]) -> Tokenized:
        text: str = self._apply(messages, tokenize=False)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets: list[tuple[int, int]] = encoded["offset_mapping"]
        return Tokenized(
            text, encoded["input_ids"], [start for start, _ in offsets], [end for _, end in offsets]
        )

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return text

    def _sanitizing(self, messages: Sequence[Message]) -> dict[str, bool]:
        spelled = any(token in message.content for message in messages for token in self._control_tokens)
        return {"sanitize_control_tokens": True} if spelled and self._can_sanitize else {}

    def _keeps_system_role(self) -> bool:
        try:
            rendered = self._apply([Message("system", _PROBE), Message("user", "Hello.")], tokenize=False)
        except (jinja2.TemplateError, ValueError, TypeError):
            return False
        return _PROBE in rendered

    def _apply(self, messages: Sequence[Message], **options: bool) -> Any:
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        return self._tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, return_dict=False, **options
        )


def _control_tokens(tokenizer: Any) -> list[str]:
    """Return the tokens that mean more than their text: special ones, and added ones that the template writes.

    transformers has the same rule, but looks into the template's literals alone; some of these it leaves as they are.
    """
    template = tokenizer.get_chat_template()
    named = getattr(tokenizer, "chat_control_tokens", None) or ()
    return [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.special
        or token.content in named
        or (token.content in template and not token.content.isspace())
    ]


def _some(token_ids: list[int]) -> list[int]:
    if not token_ids:
        raise PromptRejected("The model's chat template made an empty prompt of the messages.")
    return token_ids


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise PromptRejected for what a template or a tokenizer raises."""
    try:
        yield
    except jinja2.TemplateError as error:
        raise PromptRejected(f"The model's chat template refused the messages: {error}") from error
    except (ValueError, TypeError, UnicodeError) as error:
        raise PromptRejected(f"The model's tokenizer refused the messages: {error}") from error


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system prompt in front of the first user message, or let it be one where there is none."""
    system = [message.content for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    if not system:
        return others
    first = next((n for n, message in enumerate(others) if message.role == "user"), None)
    if first is None:
        return [Message("user", "\n\n".join(system)), *others]
    folded = "\n\n".join([*system, others[first].content])
    others[first] = msgspec.structs.replace(others[first], content=folded)
    return others
