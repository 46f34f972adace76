"""Parses replies by a format, in whatever parts they come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

from engine.messages import Tool
from engine.text.formats import ReplyFormat, family_format
from engine.text.parser import Parser, Segment
from engine.text.reply_text import Call, Piece, Thought

TOOLS = (Tool("add"), Tool("weather"))


def family(template: str, *tokens: str) -> ReplyFormat:
    """Return the format of a model by its chat template and its added tokens."""
    found = family_format(template, tokens)
    assert found is not None
    return found


HERMES = family("<tool_call></tool_call>")
LLAMA = family("parameters tool_calls", "<|python_tag|>")
MISTRAL = family("[TOOL_CALLS]")
MISTRAL_NAMED = family("[TOOL_CALLS] [ARGS]")
THINKS = family("<think>")
HERMES_THINKS = family("<tool_call></tool_call><think></think>")
FAMILIES = (HERMES, LLAMA, MISTRAL, THINKS, HERMES_THINKS)


def parser_of(
    format_: ReplyFormat, *, tools: Sequence[Tool] = TOOLS, hidden: Sequence[str] = (), opened: str = ""
) -> Parser:
    parser = Parser(format_.regions_for(tools), hidden, outside=format_.outside, tools=tools)
    parser.begin(opened)
    return parser


def segments(parser: Parser, parts: Sequence[str]) -> list[Segment]:
    return [segment for part in parts for segment in parser.feed(part)] + parser.finish()


def joined(made: Sequence[Segment]) -> list[Piece]:
    """Return the pieces of segments, with neighbors of one kind joined."""
    return merged(piece for segment in made for piece in segment.pieces)


def merged(made: Iterable[Piece]) -> list[Piece]:
    """Join neighbors of one kind."""
    pieces: list[Piece] = []
    for piece in made:
        last = pieces[-1] if pieces else None
        if isinstance(piece, str) and isinstance(last, str):
            pieces[-1] = last + piece
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            pieces[-1] = Thought(last.text + piece.text)
        else:
            pieces.append(piece)
    return pieces


def read(
    format_: ReplyFormat,
    text: str,
    *,
    tools: Sequence[Tool] = TOOLS,
    hidden: Sequence[str] = (),
    opened: str = "",
) -> list[Piece]:
    """Parse a reply letter by letter, and check that nothing of it is lost."""
    made = segments(parser_of(format_, tools=tools, hidden=hidden, opened=opened), list(text))
    assert "".join(segment.raw for segment in made) == text
    return joined(made)


def cut(text: str, places: Sequence[int]) -> list[str]:
    """Cut a text at some places, which may be beyond its end."""
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


def add(arguments: str = '{"a": 1, "b": 2}') -> Call:
    return Call("add", arguments)


def in_json(call: Call, key: str = "arguments") -> str:
    """Return a call in the JSON that families of models write."""
    return f'{{"name": {json.dumps(call.name)}, "{key}": {call.arguments}}}'
