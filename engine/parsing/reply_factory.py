"""Begins the replies of one model. A request decides what is parsed of its reply, and which special tokens are shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from engine.messages import Request
from engine.parsing.formats import ReplyFormat
from engine.parsing.openings import Openings
from engine.parsing.parsed_reply import ParsedReply
from engine.parsing.parser import Parser
from engine.text.detokenizer import detokenizer_of
from engine.text.reply_logprobs import ReplyLogprobs
from engine.text.reply_memory import ReplyRecorder
from engine.text.reply_text import ReplyText
from engine.text.vocabulary import Vocabulary


class ReplyPrefix(NamedTuple):
    """The part of a reply that is in its prompt. `opened`: the template's words. `token_ids`: of a continued reply."""

    opened: str = ""
    token_ids: Sequence[int] = ()


class StartedReply(NamedTuple):
    """A reply that begins, and the log-probabilities of its tokens, if they were asked for."""

    reply: ReplyText | ParsedReply
    logprobs: ReplyLogprobs | None


class ReplyFactory:
    """Makes the replies of one model. `format_`: how the model writes them; None if there is nothing to parse."""

    def __init__(self, tokenizer: Any, format_: ReplyFormat | None) -> None:
        """Take a transformers tokenizer, and the result of `detect_format` for it."""
        vocabulary = Vocabulary(tokenizer)
        self._showing = cache(vocabulary.showing)
        self._format = format_
        markers = () if format_ is None else format_.markers
        self._hidden = tuple(mark for mark in markers if mark in vocabulary.special_names)

    def begin(self, request: Request, beginning: ReplyPrefix, notes: ReplyRecorder) -> StartedReply:
        """Return the reply to a request, with log-probabilities if the request asks for them.

        A reply to a raw prompt is only text.
        """
        format_ = None if request.spec.raw else self._format
        regions = () if format_ is None else format_.regions_for(request.spec.shown_tools)
        shows_all = bool(request.params.special_tokens)
        hidden = self._hidden if regions and not shows_all else ()
        detokenizer = detokenizer_of(self._showing(None if shows_all else hidden))
        logprobs = None if request.params.top_logprobs is None else ReplyLogprobs(detokenizer.spell)
        stops = request.params.stop
        reply: ReplyText | ParsedReply
        if format_ is None or not regions:
            reply = ReplyText(detokenizer, stops, notes, logprobs)
        else:
            parser = Parser(
                Openings(regions, hidden),
                outside=format_.outside,
                tools=request.spec.shown_tools,
            )
            parser.begin(beginning.opened)
            one_call = not request.spec.parallel_calls
            reply = ParsedReply(detokenizer, parser, stops, notes, logprobs, one_call=one_call)
        reply.resume(beginning.token_ids)
        return StartedReply(reply, logprobs)
