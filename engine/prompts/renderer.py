"""Renders messages and the spec of their reply as the text of a prompt, with the chat template. Knows no token ids."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from engine.errors import PromptRejected
from engine.history import normalized
from engine.images.image import in_order
from engine.messages import Message
from engine.parsing.formats import ReplyFormat
from engine.prompts.chat_template import ChatTemplate, TemplateInputs
from engine.prompts.control_tokens import ControlTokens
from engine.prompts.template_messages import Mark, as_is, template_messages, template_tools
from engine.prompts.verbatim_replies import PlacedReplies, VerbatimReplies
from engine.reply_spec import PLAIN, ReplySpec

log = logging.getLogger(__name__)


class Rendered(NamedTuple):
    """A prompt's text. `begun`: the beginning of a reply that is continued, which follows the text.

    `texts`: the texts of all messages in it, in order, and whether each is the assistant's, which may be remembered.
    `opened`: words of the template at the end of the text that belong to the reply. `disguised`: the same text, and what is
    begun, with everything that the template did not write disguised.
    """

    text: str
    texts: tuple[tuple[str, bool], ...]
    begun: str = ""
    opened: str = ""
    disguised: tuple[str, str] = ("", "")


class Renderer:
    """Renders the prompts of one model."""

    def __init__(self, tokenizer: Any, format_: ReplyFormat | None, *, takes_images: bool = False) -> None:
        """Take a transformers tokenizer with a chat template, and its model's reply format. `takes_images`: it takes images."""
        self.template = ChatTemplate(tokenizer, parts=takes_images)
        self.tokens = ControlTokens(tokenizer, self.template.text, format_.markers if format_ else ())
        self._format = format_
        self._writer = None if format_ is None else VerbatimReplies(format_, self.tokens)
        self._warned = False

    @property
    def takes_tools(self) -> bool:
        """Whether the model can be shown tools and results of calls, and its calls can be read."""
        return self.template.calls is not None and self._format is not None and self._format.has_calls

    @property
    def features(self) -> tuple[str, ...]:
        """The parts of a spec that prompts follow, as in `ModelFacts`."""
        known = {
            "tools": self.takes_tools,
            "reasoning": self.template.switches_reasoning,
            "effort": self.template.knows_efforts,
            "template": True,
            "continue": True,
            "raw": True,
            "images": self.template.shows_images,
        }
        return tuple(name for name, is_known in known.items() if is_known)

    def render(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> Rendered:
        """Return the prompt that asks for the assistant's reply to these messages, or for more of the last one.

        Raises PromptRejected if the spec can't be followed, and whatever templates and transformers raise.
        """
        if spec.shown_tools and not self.takes_tools:
            raise PromptRejected("The model can't be shown tools.", field="tools")
        known = normalized(messages, self.template.rules, continues=spec.continues)
        if spec.continues and (not known or known[-1].role != "assistant"):
            raise PromptRejected("There is no reply to continue.", field="continues")
        render = self._continued if spec.continues else self._render
        made = render(known, spec, as_is)
        disguised = self._disguised(partial(render, known, spec))
        return made._replace(disguised=(disguised.text, disguised.begun))

    def _disguised(self, render: Callable[[Mark], Rendered]) -> Rendered:
        """Return a prompt with everything that the template did not write disguised.

        If the template fails on that, only control tokens are, and the prompt may have no others than without any words.
        Raises PromptRejected.
        """
        tokens, fails = self.tokens, False
        try:
            made = render(tokens.disguised)
        except Exception as error:  # noqa: BLE001 - a template may raise anything for texts that it does not know
            fails = True
            if not self._warned:
                log.warning("chat template failed on disguised text: %s", type(error).__name__)
            self._warned = True
            made = render(tokens.quoted)
        if fails or tokens.are_cut(made.text):
            blank = render(tokens.blank).text
            made = made._replace(text=tokens.settled(made.text, blank))
            if fails and tokens.written(made.text) != tokens.written(blank):
                raise PromptRejected(
                    "The chat template makes control tokens of the messages. Change their words."
                )
        return made

    def _render(
        self, known: Sequence[Message], spec: ReplySpec, mark: Mark, *, continues: bool = False
    ) -> Rendered:
        tools, variables = template_tools(spec.shown_tools, mark), self.template.variables(spec)
        values: dict[str, Any] = {name: mark([value])[0] for name, value in variables.items()}

        def text_of(shown: Sequence[Message]) -> str:
            inputs = TemplateInputs(template_messages(shown, self.template.style, mark), tools, values)
            return self.template.render(inputs, continues=continues)

        text = text_of(known)
        placed = (
            PlacedReplies(text, {})
            if self._writer is None
            else self._writer.placed(text, known, text_of, mark)
        )
        texts = [
            (text, one.role == "assistant")
            for n, one in enumerate(known)
            for text in _texts(one, placed.written.get(n, one.content))
        ]
        return Rendered(placed.text, tuple(texts), opened=self._opened(placed.text))

    def _continued(self, messages: Sequence[Message], spec: ReplySpec, mark: Mark) -> Rendered:
        """Return the prompt of the reply, and then the reply: all of that was computed before.

        Only if the template opens a reasoning that the reply does not have, its prompt was another one.
        """
        last = messages[-1]
        prompt = self._render(messages[:-1], spec, mark)
        if last.reasoning and not last.written:
            last = msgspec.structs.replace(last, written=self._spelled(messages, spec, prompt, mark))
        if prompt.opened and not last.written:
            made = self._render(messages, spec, mark, continues=True)
            return made._replace(opened=last.content)
        raw = last.written or last.content
        reply = msgspec.structs.replace(last, written=raw)
        begun = mark(raw) if self._writer is None else self._writer.marked(reply, mark, prompt.opened)
        return prompt._replace(begun=begun)

    def _spelled(self, messages: Sequence[Message], spec: ReplySpec, prompt: Rendered, mark: Mark) -> str:
        """Return a reply with its reasoning as the template writes it, or an empty string if that leaves reasoning out.

        `prompt`: that of the reply, which it must follow. Raises PromptRejected if reasoning alone has no place.
        """
        last = messages[-1]
        if prompt.opened and not last.content:
            return last.reasoning
        thought, word = (f"w{secrets.token_hex(6)}{end}" for end in ("rz", "cz"))
        other = Message("assistant", word if last.content else "", reasoning=thought)
        shown = self._render([*messages[:-1], other], spec, mark).text
        ends = [shown.find(each) + len(each) for each in (thought, word) if each in shown]
        if not shown.startswith(prompt.text) or len(ends) != 1 + bool(last.content):
            if not last.content:
                why = "The model's chat template has no place for reasoning that is continued."
                raise PromptRejected(why, field="continues")
            return ""
        raw = shown[len(prompt.text) : max(ends)]
        return raw.replace(thought, last.reasoning).replace(word, last.content)

    def _opened(self, prompt: str) -> str:
        return "" if self._format is None else self._format.opening(prompt)


def _texts(message: Message, texts: str) -> list[str]:
    """Return the text of a message in one piece, or the pieces around its images."""
    if not message.images:
        return [texts]
    return [part for part in in_order(message.content, message.images) if isinstance(part, str)]
