"""Turns the tokens of a reply into text, reasoning and calls, while it is written.

The parser takes text, however it is cut, and returns segments once they are certain. Nothing is lost: what looked like a
call but is not one stays text, and all segments joined are the reply as written. Stop strings end a reply only within its
text, not in reasoning or calls, nor across them. Knows no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import regex

from engine.messages import Request, Tool
from engine.text.detokenizer import Detokenizer, Vocabulary
from engine.text.formats import CallRegion, Delimiter, Kind, Region, ReplyFormat, Where
from engine.text.reply_text import (
    Call,
    Piece,
    ReplyLogprobs,
    ReplyText,
    ShownText,
    Thought,
)


class ReplyFactory:
    """Makes the replies of one model. `format_`: how the model writes them; None if there is nothing to parse."""

    def __init__(self, tokenizer: Any, format_: ReplyFormat | None) -> None:
        """Take a transformers tokenizer, and the result of `detect_format` for it."""
        vocabulary = Vocabulary(tokenizer)
        self._showing = cache(vocabulary.showing)
        self._format = format_
        markers = () if format_ is None else format_.markers
        self._hidden = tuple(mark for mark in markers if mark in vocabulary.special_names)

    def begin(self, request: Request, beginning: ReplyPrefix) -> ReplyText:
        """Return the reply to a request, with log-probabilities if the request asks for them."""
        format_ = self._format
        regions = () if format_ is None else format_.regions_for(request.spec.shown_tools)
        shows_all = bool(request.params.special_tokens)
        hidden = self._hidden if regions and not shows_all else ()
        vocabulary = self._showing(None if shows_all else hidden)
        detokenizer = Detokenizer(vocabulary)
        logprobs = None if request.params.top_logprobs is None else ReplyLogprobs(vocabulary.spell)
        stops = request.params.stop
        reply: ReplyText
        if format_ is None or not regions:
            reply = ReplyText(detokenizer, stops, logprobs)
        else:
            parser = Parser(regions, hidden, outside=format_.outside, tools=request.spec.shown_tools)
            parser.begin(beginning.opened)
            one_call = not request.spec.parallel_calls
            reply = ParsedReply(detokenizer, parser, stops, logprobs, one_call=one_call)
        reply.resume(beginning.token_ids)
        return reply


class ReplyPrefix(NamedTuple):
    """The part of a reply that is in its prompt. `opened`: words of the template. `token_ids`: those of a continued reply."""

    opened: str = ""
    token_ids: Sequence[int] = ()


class ParsedReply(ReplyText):
    """Passes decoded text through a parser, then all but reasoning and calls through stop strings, in whole characters.

    An unfinished call becomes text at the reply's end.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        parser: Parser,
        stops: Sequence[str] = (),
        logprobs: ReplyLogprobs | None = None,
        *,
        one_call: bool = False,
    ) -> None:
        """Take a fresh detokenizer and parser; the rest as in `ReplyText`. `one_call`: the first call ends the reply."""
        super().__init__(detokenizer, stops, logprobs)
        self._parser = parser
        self._thoughts = ShownText()
        self._one_call = one_call

    def _begin(self, text: str) -> None:
        self._parser.begin(text)

    def _take(self, text: str) -> tuple[Piece, ...]:
        return self._pieces(self._parser.feed(text))

    def _end(self, text: str) -> tuple[Piece, ...]:
        pieces = self._pieces([*self._parser.feed(text), *self._parser.finish()])
        return pieces if self._stopped else (*pieces, *self._rest())

    def _pieces(self, segments: Sequence[Segment]) -> tuple[Piece, ...]:
        made: list[Piece] = []
        for raw, pieces in segments:
            kind = type(pieces[0]) if pieces else None
            if kind is str:
                made += super()._take(raw)
            else:
                made += self._rest(thinks=kind is Thought)
                if self.logprobs is not None:
                    self.logprobs.parsed(len(raw), is_text=False)
                if kind is Thought:
                    shown = self._thoughts.push(raw)
                    made += [Thought(shown)] if shown else []
                else:
                    made += pieces[:1] if self._one_call else pieces
                    self._stopped = self._one_call and kind is Call
            if self._stopped:
                break
        return tuple(made)

    def _rest(self, *, thinks: bool = False) -> list[Piece]:
        """Return the text that waits, and the reasoning unless it continues."""
        text = self._text.flush()
        thought = "" if thinks else self._thoughts.flush()
        return [*([text] if text else []), *([Thought(thought)] if thought else [])]


class Segment(NamedTuple):
    """A part of a reply: `raw`, as it was written, and the pieces that it becomes."""

    raw: str
    pieces: tuple[Piece, ...]


class Parser:
    """Takes one reply apart.

    White space around delimiters belongs to them. A region of calls is held back until it is whole. If it holds no
    calls, its first character becomes text, and the rest is parsed again.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        hidden: Sequence[str] = (),
        *,
        outside: Kind = Kind.TEXT,
        tools: Sequence[Tool] = (),
    ) -> None:
        """Take the regions of a format. `hidden`: tokens that are not shown even if they delimit nothing.

        `outside`: the kind of text outside all regions. `tools`: those shown to the model.
        """
        self._regions = tuple(regions)
        self._hidden = _hidden(hidden)
        self._outside_kind = outside
        self._tools = tuple(tools)
        self._made: list[Segment] = []
        self._buffer = ""
        self._open: Region | None = None
        self._held, self._scanner = CallRegion(), JsonScanner()
        self._calls = self._broken = 0
        self._at_start = True  # no text and no call has come
        self._behind_call = False  # only white space came since a call
        self._trims = False  # white space that comes next belongs to the delimiter before it
        self._has_thought = self._ended = self._has_passed = False
        self._state: Callable[[], bool] = self._in_text

    def feed(self, text: str) -> list[Segment]:
        """Take more text, and return the segments that are certain now. Once no region can open, nothing is held back."""
        if self._has_passed:
            return [Segment(text, (text,))]
        self._buffer += text
        made = self._run(ended=False)
        is_waiting = self._open or self._buffer or self._trims or self._watched
        self._has_passed = self._kind is Kind.TEXT and not is_waiting
        return made

    def finish(self) -> list[Segment]:
        """Return what was held back, since the reply has ended."""
        return self._run(ended=True)

    def begin(self, text: str) -> None:
        """Take the beginning of a reply, sent before: words of the template, or of a reply that is continued.

        If `text` ends within a call, the rest of that call is text, too, as its beginning was. Reasoning continues.
        """
        self.feed(text)
        if self._kind is Kind.CALLS:
            self._break()
        self.finish()

    @property
    def _kind(self) -> Kind:
        return self._outside_kind if self._open is None else self._open.kind

    @property
    def _watched(self) -> list[ActiveDelimiter]:
        """The delimiters that count now."""
        if self._open is not None:
            closes = [] if self._open.close is None else [ActiveDelimiter(self._open.close, self._open)]
            return [*closes, *self._hidden]
        opening = [
            ActiveDelimiter(region.opening, region, anchored=region.where is not Where.ANYWHERE)
            for region in self._regions
            if self._may_open(region)
        ]
        return [*opening, *self._hidden]

    def _may_open(self, region: Region) -> bool:
        """Whether a region may open here: reasoning at the start may come once, and calls are bounded."""
        if region.kind is Kind.CALLS and not (self._calls < MOST_CALLS and self._broken < MOST_BROKEN):
            return False
        if region.where is Where.START:
            return self._at_start and not (region.kind is Kind.THOUGHT and self._has_thought)
        return region.where is Where.ANYWHERE or self._behind_call

    def _run(self, *, ended: bool) -> list[Segment]:
        self._ended = ended
        while self._state():
            pass
        made, self._made = self._made, []
        return made

    def _in_text(self) -> bool:
        """Read on in text or in reasoning, up to the next delimiter."""
        if self._trims:
            self._add(self._take(len(self._buffer) - len(self._buffer.lstrip())))
            self._trims = not self._buffer
        sought = seek(self._watched, self._buffer, ended=self._ended)
        self._add_text(self._take(sought.before), self._kind)
        if sought.match is None:
            return False
        region = sought.region
        if region is not None and region.kind is Kind.CALLS:
            self._enter_calls(sought.match, region)
            return True
        self._add(self._take(len(sought.match.group())))
        if region is not None and region.kind is not Kind.NOTHING:
            self._open = region if self._open is None else None
            self._has_thought = self._trims = True
        return True

    def _enter_calls(self, match: Match, region: Region) -> None:
        end = match.start("value") if region.is_json else match.end()
        name = match.group("name") if "name" in match.re.groupindex else None
        self._open, self._state = region, self._in_json if region.is_json else self._in_calls
        self._held, self._scanner = CallRegion(self._take(end - match.start()), name), JsonScanner()

    @property
    def _room(self) -> int:
        """How many more characters of a region of calls may be held back."""
        return LONGEST_CALL - self._held.chars

    def _in_json(self) -> bool:
        self._held.add(self._take(self._scanner.scan(self._buffer[: self._room])))
        if self._scanner.done:
            self._state = self._behind_json
            return True
        return (self._scanner.broken or self._room == 0 or self._ended) and self._break()

    def _behind_json(self) -> bool:
        assert self._open is not None  # noqa: S101 - a region of calls
        if (close := self._open.close) is not None:
            match = close.pattern.match(self._buffer, partial=True)
            if match is None:
                return self._break()
            if match.partial and not self._ended:
                return False
            self._held.add(self._take(match.end()), inside=False)
        return self._complete()

    def _in_calls(self) -> bool:
        """Read on in a region of calls that ends at its close, not with its JSON."""
        assert self._open is not None  # noqa: S101 - a region of calls
        close = self._open.close
        match = None if close is None else find(close, self._buffer, ended=self._ended)
        fits = match is not None and match.end() <= self._room
        if close and match and fits and is_decided(close, match, self._buffer, ended=self._ended):
            self._held.add(self._take(match.start()))
            self._held.add(self._take(len(match.group())), inside=False)
            return self._complete()
        if len(self._buffer) > self._room:
            self._held.add(self._take(self._room))
            return self._break()
        self._held.add(self._take(match.start() if match and not self._ended else len(self._buffer)))
        return self._ended and (self._complete() if self._open.ends_with_reply else self._break())

    def _complete(self) -> bool:
        """Read the whole value, which may still turn out to be no call."""
        assert self._open is not None  # noqa: S101 - a region of calls
        try:
            calls = () if self._open.read is None else self._open.read(self._held, self._tools)
        except ValueError:
            calls = ()
        if not calls or self._calls + len(calls) > MOST_CALLS:
            return self._break()
        self._calls += len(calls)
        self._add(self._held.raw, calls)
        self._open, self._state = None, self._in_text
        self._at_start, self._behind_call, self._trims = False, True, True
        return True

    def _break(self) -> bool:
        """Parse the held region again, as no call. If text outside regions isn't shown, the region becomes text."""
        self._broken += 1
        self._open, self._state = None, self._in_text
        raw, self._held = self._held.raw, CallRegion()
        if self._outside_kind is not Kind.TEXT:
            self._add_text(raw, Kind.TEXT)
            return True
        self._buffer = raw + self._buffer
        self._add_text(self._take(len(raw) - len(raw.lstrip())), Kind.TEXT)
        found = (one.delimiter.pattern.match(self._buffer) for one in self._hidden)
        if token := next((match.group() for match in found if match is not None), ""):
            self._add(self._take(len(token)))
        else:
            self._add_text(self._take(1), Kind.TEXT)
        return True

    def _add_text(self, text: str, kind: Kind) -> None:
        """Add text of a kind, to the segment before it if that has the same kind."""
        if not text:
            return
        if kind is Kind.TEXT:
            self._at_start = self._behind_call = False
        made = Thought(text) if kind is Kind.THOUGHT else text
        if self._made and kind is not Kind.NOTHING:
            last, pieces = self._made[-1]
            if pieces and type(pieces[0]) is type(made):
                text = last + text
                made = Thought(text) if kind is Kind.THOUGHT else text
                del self._made[-1]
        self._add(text, () if kind is Kind.NOTHING else (made,))

    def _add(self, raw: str, pieces: tuple[Piece, ...] = ()) -> None:
        if raw:
            self._made.append(Segment(raw, pieces))

    def _take(self, chars: int) -> str:
        taken, self._buffer = self._buffer[:chars], self._buffer[chars:]
        return taken


LONGEST_DELIMITER = 1024
"""The most characters of a delimiter, and so the most that are held back while one may have begun."""
MOST_CALLS = 128
"""The most calls of a reply. Whatever looks like a call after them is text."""
MOST_BROKEN = 128
"""The most regions that look like calls but are not; after them, no calls are looked for."""
LONGEST_CALL = 256 * 1024
"""The most characters of a region of calls, its delimiters included, that are held back. A longer one is text."""
Match = regex.Match[str]


def _hidden(tokens: Sequence[str]) -> tuple[ActiveDelimiter, ...]:
    """Return a delimiter that matches any of `tokens`, the longest first."""
    if not tokens:
        return ()
    longest_first = sorted(tokens, key=len, reverse=True)
    return (ActiveDelimiter(Delimiter(regex.compile("|".join(map(regex.escape, longest_first))))),)


DEEPEST = 64
"""The most nested objects and arrays in a call."""


_BLANKS = regex.compile(r"[ \t\n\r]*")
_BETWEEN = regex.compile(r"[-+.,: \t\n\r0-9Eaeflnrstu]*")
"""Numbers, true, false, null, and what separates values."""
_CHARACTERS = regex.compile(r'[^"\\\x00-\x1f]*')
_CLOSERS = {"{": "}", "[": "]"}


class JsonScanner:
    """Finds the end of one object or array. It looks at each character once, however the text is cut.

    `done`: the brackets are closed; whether the value is JSON is left to its parser. `broken`: the value is not JSON, or
    nested too deeply. Most words that are not JSON break it early, so text that looks like a call flows on.
    """

    def __init__(self) -> None:
        """Expect the opening bracket next."""
        self.done = self.broken = False
        self._closers: list[str] = []
        self._in_string = self._is_escaped = False

    def scan(self, text: str) -> int:
        """Read on. Return how many characters were read: all, unless the value is done or broken."""
        at = 0
        while at < len(text) and not self.done and not self.broken:
            at = self._string(text, at) if self._in_string else self._outside(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        at = _end_of(_CHARACTERS, text, at)
        if at == len(text):
            return at
        self._in_string, self._is_escaped = text[at] != '"', text[at] == "\\"
        self.broken = text[at] < " "
        return at if self.broken else at + 1

    def _outside(self, text: str, at: int) -> int:
        at = _end_of(_BETWEEN if self._closers else _BLANKS, text, at)
        if at == len(text):
            return at
        letter = text[at]
        if letter in _CLOSERS and len(self._closers) < DEEPEST:
            self._closers.append(_CLOSERS[letter])
        elif self._closers and letter == self._closers[-1]:
            self._closers.pop()
            self.done = not self._closers
        elif self._closers and letter == '"':
            self._in_string = True
        else:
            self.broken = True
            return at
        return at + 1


def _end_of(pattern: regex.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


class ActiveDelimiter(NamedTuple):
    """A delimiter that counts now. `region`: what it opens, if anything. `anchored`: it counts only at the text's start."""

    delimiter: Delimiter
    region: Region | None = None
    anchored: bool = False


class SearchResult(NamedTuple):
    """The result of a search. `before`: how many characters precede any delimiter, and anything that may become one.

    `match` follows them: the opening or the close of `region`, if it is decided.
    """

    before: int
    match: regex.Match[str] | None = None
    region: Region | None = None


def seek(watched: Sequence[ActiveDelimiter], text: str, *, ended: bool) -> SearchResult:
    """Look for the first of several delimiters. Of those that begin at the same place the longest counts.

    `ended`: no more text comes. A delimiter is undecided while another one may have begun before it.
    """
    best, hold = SearchResult(len(text)), len(text)
    for one in watched:
        match = find(one.delimiter, text, anchored=one.anchored, ended=ended)
        if match is None:
            continue
        if not is_decided(one.delimiter, match, text, ended=ended):
            hold = min(hold, match.start())
        elif match.end() > match.start():
            found = SearchResult(match.start(), match, one.region)
            if best.match is None or (found.before, -match.end()) < (best.before, -best.match.end()):
                best = found
    return best if best.before < hold else SearchResult(hold)


def find(delimiter: Delimiter, text: str, *, anchored: bool = False, ended: bool) -> regex.Match[str] | None:
    """Return the first match of a delimiter. Unless the text has `ended`, that may be a partial match at its end."""
    if anchored:
        match = delimiter.pattern.match(text, partial=not ended)
        return match if match is not None and _is_short(match) else None
    place = 0
    while (match := delimiter.pattern.search(text, place, partial=not ended)) and not _is_short(match):
        place = match.start() + 1
        if match.partial and not delimiter.pattern.search(text, place):
            # A partial match is too long as well, unless it begins in the last characters.
            place = max(place, len(text) - LONGEST_DELIMITER)
    return match


def is_decided(delimiter: Delimiter, match: regex.Match[str], text: str, *, ended: bool) -> bool:
    """Return whether a match stays the same, whatever follows the text."""
    return ended or not (match.partial or (delimiter.grows and match.end() == len(text)))


def _is_short(match: regex.Match[str]) -> bool:
    return match.end() - match.start() <= LONGEST_DELIMITER
