"""Puts replies into a prompt as the model wrote them, in place of what the template makes of them.

To find the places, it renders the same conversation with random words in those messages. The words must come out again,
be parsed as they went in, and leave everything around them the same. Then the cached keys and values fit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import regex

from engine.messages import Message, ToolCall
from engine.parsing.formats import Kind, ReplyFormat
from engine.parsing.parser import Openings, Parser, Segment
from engine.prompts.control_tokens import ControlTokens
from engine.reply_spec import Tool
from engine.text.reply_text import Call, Thought

Render = Callable[[Sequence[Message]], str]
Mark = Callable[[str], str]

_ATTEMPTS = 3
"""How many times places are looked for. A message without a place is left to the template the next time."""


class PlacedReplies(NamedTuple):
    """A prompt's text, and the replies that are in it as they were written, by the index of their message."""

    text: str
    written: dict[int, str]


class _Span(NamedTuple):
    """Where a reply is in a prompt. `thinks`: its reasoning, too. `opened`: its opening, if the template wrote that."""

    start: int
    end: int
    thinks: bool
    opened: str


class _Opening(NamedTuple):
    """An opening that the template writes, without white space before it."""

    start: int
    match: regex.Match[str]


@dataclass(frozen=True, slots=True)
class _PlaceholderReply:
    """A reply with random words in place of its text, its reasoning and the names of its calls, to be found again."""

    reply: Message
    message: Message
    word: str
    thought: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, reply: Message) -> _PlaceholderReply:
        nonce = f"w{secrets.token_hex(6)}"
        word, thought = f"{nonce}cz" if reply.content else "", f"{nonce}rz" if reply.reasoning else ""
        names = tuple(f"{nonce}n{place}z" for place in range(len(reply.calls)))
        ids = (call.call_id for call in reply.calls)
        calls = tuple(ToolCall(call_id, name, "{}") for call_id, name in zip(ids, names, strict=True))
        return cls(reply, Message("assistant", word, reasoning=thought, calls=calls), word, thought, names)

    def places(self, text: str, behind: int) -> list[int]:
        """Return where the words are in a text, from `behind` on. The list is empty if words are missing.

        Only reasoning, and text beside calls, may be missing, since templates leave these out.
        """
        names = [text.find(name, behind) for name in self.names]
        word, thought = (text.find(each, behind) if each else -1 for each in (self.word, self.thought))
        if -1 in names or (word < 0 and not names):
            return []
        return [at for at in (thought, word, *names) if at >= 0]

    def kind_of(self, text: str) -> Kind:
        """Return the kind of the word that a text begins with."""
        if self.thought and text.startswith(self.thought):
            return Kind.THOUGHT
        return Kind.TEXT if self.word and text.startswith(self.word) else Kind.CALLS


class VerbatimReplies:
    """Puts replies as they were written into the prompts of one model."""

    def __init__(self, format_: ReplyFormat, tokens: ControlTokens) -> None:
        """Take the model's reply format and its control tokens, one of which ends a message."""
        self._format = format_
        self._tokens = tokens

    def placed(self, text: str, messages: Sequence[Message], render: Render, mark: Mark) -> PlacedReplies:
        """Return a prompt with those replies as they were written that have a place. `text`: the template's own rendering.

        `mark` is applied to everything in these replies that is no delimiter.
        """
        places = [place for place, one in enumerate(messages) if one.role == "assistant" and one.written]
        for _ in range(_ATTEMPTS):
            if not places:
                break
            others = {place: _PlaceholderReply.of(messages[place]) for place in places}
            shown = _tried(render, [others.get(n, one) for n, one in enumerate(messages)])
            spans = dict(self._spans(shown, others))
            if len(spans) == len(places):
                return self._replaced(text, shown, [(n, others[n].reply, spans[n]) for n in places], mark)
            places = list(spans)
        return PlacedReplies(text, {})

    def marked(self, reply: Message, mark: Mark, opened: str = "") -> str:
        """Return a reply as it was written, with `mark` applied to all but delimiters. `opened`: as in the prompt."""
        return _marked(self._segments(reply, opened), mark)

    def _spans(self, text: str, others: dict[int, _PlaceholderReply]) -> Iterator[tuple[int, _Span]]:
        behind = 0
        for place, other in others.items():
            span = self._span(text, behind, other)
            if span is not None:
                behind = span.end
                yield place, span

    def _span(self, text: str, behind: int, other: _PlaceholderReply) -> _Span | None:
        """Return where a reply is by its random words; None if words are missing or would be parsed differently."""
        found = other.places(text, behind)
        end = self._tokens.next_end(text, max(found)) if found else None
        if not found or end is None:
            return None
        first, kind = min(found), other.kind_of(text[min(found) :])
        opening = self._opening(text[behind:first], kind)
        if opening is None:
            span = None if kind is Kind.CALLS else _Span(first, end, thinks=False, opened="")
        elif kind is Kind.CALLS or opening.match.re.match(other.reply.written):
            span = _Span(behind + opening.start, end, thinks=False, opened="")
        else:
            span = _Span(first, end, thinks=False, opened=text[behind + opening.start : first])
        if span is None:
            return None
        span = span._replace(thinks=bool(other.thought) and other.thought in text[first:end])
        return span if self._matches(text[span.start : span.end], other, span) else None

    def _opening(self, text: str, kind: Kind) -> _Opening | None:
        """Return the last opening of a kind of region. Those of text and reasoning count only at the end of the text."""
        matches = (
            match
            for region in self._format.regions
            if region.kind is kind
            for match in region.opening.pattern.finditer(text)
            if kind is Kind.CALLS or not text[match.end() :].strip()
        )
        last = max(matches, key=regex.Match.start, default=None)
        if last is None:
            return None
        return _Opening(last.start() + len(last.group()) - len(last.group().lstrip()), last)

    def _matches(self, raw: str, other: _PlaceholderReply, span: _Span) -> bool:
        """Return whether a part of a prompt is parsed as these words, with no delimiter behind them."""
        segments = self._segments(msgspec.structs.replace(other.message, written=raw), span.opened)
        pieces = [piece for segment in segments for piece in segment.pieces]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
        names = tuple(piece.name for piece in pieces if isinstance(piece, Call))
        word = other.word if other.word in raw else ""
        same_text = text.strip() == word and thought.strip() == (other.thought if span.thinks else "")
        return (
            same_text and names == other.names and bool(segments[-1].pieces or not segments[-1].raw.strip())
        )

    def _segments(self, reply: Message, opened: str) -> list[Segment]:
        tools = [Tool(call.name) for call in reply.calls]
        parser = Parser(Openings(self._format.regions, ()), outside=self._format.outside, tools=tools)
        parser.begin(opened)
        return [*parser.feed(reply.written), *parser.finish()]

    def _replaced(
        self, text: str, shown: str, places: Sequence[tuple[int, Message, _Span]], mark: Mark
    ) -> PlacedReplies:
        around, end = [], 0
        for _, _, span in places:
            around.append(shown[end : span.start])
            end = span.end
        around.append(shown[end:])
        if not _has_in_order(text, around):
            return PlacedReplies(text, {})
        made, written = around[0], {}
        for (place, reply, span), behind in zip(places, around[1:], strict=True):
            segments = self._segments(reply, span.opened)
            if reply.reasoning and not span.thinks:
                segments = _behind_reasoning(segments)
            else:
                written[place] = reply.written
            made += _marked(segments, mark) + behind
        return PlacedReplies(made, written)


def _tried(render: Render, messages: Sequence[Message | _PlaceholderReply]) -> str:
    """Render a conversation with random words. Returns an empty string if the template refuses them."""
    try:
        return render([one.message if isinstance(one, _PlaceholderReply) else one for one in messages])
    except Exception:  # noqa: BLE001 - a template may raise anything; then it writes the replies itself
        return ""


def _behind_reasoning(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments of a reply behind its reasoning, which the template leaves out."""
    shown = [n for n, one in enumerate(segments) if one.pieces and not isinstance(one.pieces[0], Thought)]
    return list(segments[shown[0] :]) if shown else []


def _marked(segments: Sequence[Segment], mark: Mark) -> str:
    return "".join(raw[:begin] + mark(raw[begin:end]) + raw[end:] for raw, _, begin, end in segments)


def _has_in_order(text: str, parts: Sequence[str]) -> bool:
    """Return whether a text begins with the first part, ends with the last, and has the others in between, in order."""
    at = len(parts[0])
    for part in parts[1:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.startswith(parts[0]) and text.endswith(parts[-1]) and at + len(parts[-1]) <= len(text)
