"""Turns the tokens of a reply into text, reasoning and calls, while it is written.

The parser takes text, however it is cut, and returns segments once they are certain. Nothing is lost: what looked like a
call but is not one stays text, and all segments joined are the reply as written. Stop strings end a reply only within its
text, not in reasoning or calls, nor across them. Knows no batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import regex

from engine.messages import Request, Tool
from engine.text.detokenizer import Detokenizer, Vocabulary, detokenizer_of
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
        detokenizer = detokenizer_of(vocabulary)
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
        self._text_chars = 0

    def _begin(self, text: str) -> None:
        self._parser.begin(text)

    def _take(self, text: str) -> tuple[Piece, ...]:
        return self._pieces(self._parser.feed(text))

    def _end(self, text: str) -> tuple[Piece, ...]:
        pieces = self._pieces([*self._parser.feed(text), *self._parser.finish()])
        return pieces if self._stopped else (*pieces, *self._rest())

    def _pieces(self, segments: Sequence[Segment]) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        for segment in segments:
            if len(segment.pieces) == 1 and isinstance(segment.pieces[0], str):
                self._text_chars += len(segment.raw)
                pieces += super()._take(segment.raw)
            else:
                pieces += self._emit_segment(segment)
            if self._stopped:
                break
        return tuple(pieces)

    def _emit_segment(self, segment: Segment) -> list[Piece]:
        """Return the pieces of a segment that is not text, after text and reasoning that waited before it."""
        thinks = bool(segment.pieces) and isinstance(segment.pieces[0], Thought)
        pieces_before = self._rest(thinks=thinks)
        if self.logprobs is not None:
            self.logprobs.skip(self._text_chars, len(segment.raw))
        if thinks:
            shown = self._thoughts.push(segment.raw)
            return [*pieces_before, Thought(shown)] if shown else pieces_before
        return [*pieces_before, *self._calls(segment.pieces)]

    def _calls(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if not (self._one_call and pieces):
            return pieces
        self._stopped = True
        return pieces[:1]

    def _rest(self, *, thinks: bool = False) -> list[Piece]:
        """Return the text that waits, and the reasoning unless it continues."""
        text = self._text.flush()
        thought = "" if thinks else self._thoughts.flush()
        return [*([text] if text else []), *([Thought(thought)] if thought else [])]


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
        self._calls = self._broken = 0
        self._has_thought = False
        self._known: tuple[bool, bool] | None = None
        self._openings: tuple[ActiveDelimiter, ...] = ()
        self._outside_kind = outside
        self._tools = tuple(tools)
        self._segments = Segments()
        self._buffer = ""
        self._open: Region | None = None
        self._region_buffer = RegionBuffer()
        self._ended = self._has_passed = False
        self._state: Callable[[], bool] = self._outside

    @property
    def passes(self) -> bool:
        """Whether everything that may still come is text."""
        is_waiting = self._open or self._buffer or self._watched or self._segments.trims
        return self._kind is Kind.TEXT and not is_waiting

    def feed(self, text: str) -> list[Segment]:
        """Take more text, and return the segments that are certain now. Once no region can open, nothing is held back."""
        if self._has_passed:
            return [Segment(text, (text,))]
        self._buffer += text
        self._run(ended=False)
        self._has_passed = self.passes
        return self._segments.take()

    def finish(self) -> list[Segment]:
        """Return what was held back, since the reply has ended."""
        self._run(ended=True)
        self._segments.flush(self._kind)
        return self._segments.take()

    def begin(self, text: str) -> None:
        """Take the beginning of a reply, sent before: words of the template, or of a reply that is continued.

        If `text` ends within a call, the rest of that call is text, too, as its beginning was. Reasoning continues.
        """
        self.feed(text)
        if self._kind is Kind.CALLS:
            self._break()
        self.finish()

    @property
    def _watched(self) -> tuple[ActiveDelimiter, ...]:
        """The delimiters that count now, outside of all regions."""
        known = self._segments.at_start, self._segments.behind_call
        if self._known != known:
            self._known = known
            opening = [
                ActiveDelimiter(region.opening, region, anchored=region.where is not Where.ANYWHERE)
                for region in self._regions
                if self._may_open(region)
            ]
            self._openings = (*opening, *self._hidden)
        return self._openings

    def _may_open(self, region: Region) -> bool:
        """Whether a region may open here: reasoning at the start may come once, and calls are bounded."""
        if region.kind is Kind.CALLS and not (self._calls < MOST_CALLS and self._broken < MOST_BROKEN):
            return False
        if region.where is Where.START:
            return self._segments.at_start and not (region.kind is Kind.THOUGHT and self._has_thought)
        return region.where is Where.ANYWHERE or self._segments.behind_call

    @property
    def _kind(self) -> Kind:
        return self._outside_kind if self._open is None else self._open.kind

    @property
    def _region(self) -> Region:
        """The open region."""
        assert self._open is not None  # noqa: S101 - only states inside a region read it
        return self._open

    def _run(self, *, ended: bool) -> None:
        self._ended = ended
        while self._state():
            pass

    def _outside(self) -> bool:
        if self._segments.trims:  # white space after a delimiter belongs to it
            self._emit_text(len(self._buffer) - len(self._buffer.lstrip()), waits=False)
        watched = self._watched
        waits = any(one.region is not None and not one.anchored for one in watched)
        sought = seek(watched, self._buffer, ended=self._ended)
        self._emit_text(sought.before, waits=waits)
        if sought.match is None:
            return False
        self._enter(sought.match, sought.region)
        return True

    def _inside(self) -> bool:
        """Read on in a region of text or of reasoning."""
        closes = () if self._region.close is None else (ActiveDelimiter(self._region.close, self._region),)
        sought = seek((*closes, *self._hidden), self._buffer, ended=self._ended)
        self._emit_text(sought.before, waits=bool(closes))
        if sought.match is None:
            return False
        raw = self._take(len(sought.match.group()))
        if sought.region is None:
            self._segments.skip(raw, self._kind)
        else:
            self._segments.delimit(raw)
            self._leave()
        return True

    def _in_json(self) -> bool:
        region_buffer = self._region_buffer
        region_buffer.add(self._take(region_buffer.scanner.scan(self._buffer[: region_buffer.room])))
        if region_buffer.scanner.done:
            region_buffer.end_value()
            self._state = self._behind_json
            return True
        return (region_buffer.scanner.broken or region_buffer.room == 0 or self._ended) and self._break()

    def _behind_json(self) -> bool:
        close = self._region.close
        if close is not None:
            match = close.pattern.match(self._buffer, partial=True)
            if match is None:
                return self._break()
            if match.partial and not self._ended:
                return False
            self._region_buffer.add(self._take(match.end()))
        return self._complete()

    def _behind_value(self) -> bool:
        """Read on after a value of a reply that has only calls."""
        match = None if self._region.more is None else self._region.more.match(self._buffer, partial=True)
        if match is None or (self._ended and match.partial and self._buffer.strip()):
            return self._break()
        if not match.partial:
            self._region_buffer.add(self._take(match.start("value")))
            self._region_buffer.begin_value()
            self._state = self._in_json
            return True
        if self._ended:
            self._region_buffer.add(self._take(len(self._buffer)))
            return self._emit_calls()
        return False

    def _in_calls(self) -> bool:
        """Read on in a region of calls that ends at its close, not with its JSON."""
        region_buffer, close = self._region_buffer, self._region.close
        match = None if close is None else find(close, self._buffer, ended=self._ended)
        fits = match is not None and match.end() <= region_buffer.room
        if close and match and fits and is_decided(close, match, self._buffer, ended=self._ended):
            region_buffer.add(self._take(match.start()))
            region_buffer.end_value()
            region_buffer.add(self._take(len(match.group())))
            return self._complete()
        if len(self._buffer) > region_buffer.room:
            region_buffer.add(self._take(region_buffer.room))
            return self._break()
        region_buffer.add(
            self._take(match.start() if match is not None and not self._ended else len(self._buffer))
        )
        region_buffer.end_value()
        return self._ended and (self._complete() if self._region.ends_with_reply else self._break())

    def _enter(self, match: Match, region: Region | None) -> None:
        """Take an opening from the front of the buffer."""
        raw = match.group()
        if region is None or region.kind is Kind.NOTHING:
            self._segments.skip(self._take(len(raw)), self._kind)
            return
        blanks = len(raw) - len(raw.lstrip())
        self._emit_text(blanks, waits=True)
        self._open = region
        if region.kind is Kind.CALLS:
            end = match.start("value") if region.is_json else match.end()
            name = match.group("name") if "name" in match.re.groupindex else None
            self._region_buffer = RegionBuffer(self._take(end - match.start() - blanks), name)
            self._state = self._in_json if region.is_json else self._in_calls
            return
        self._segments.delimit(self._take(len(raw) - blanks))
        self._has_thought, self._known = True, None
        self._state = self._inside

    def _complete(self) -> bool:
        """Read the whole value, which may still turn out to be no call."""
        calls = self._read()
        if not calls or self._calls + len(self._region_buffer.calls) + len(calls) > MOST_CALLS:
            return self._break()
        self._region_buffer.calls += calls
        if self._region.whole:
            self._state = self._behind_value
            return True
        return self._emit_calls()

    def _read(self) -> tuple[Call, ...]:
        region = self._region
        try:
            calls = () if region.read is None else region.read(self._region_buffer.value, self._tools)
        except ValueError:
            return ()
        known = {tool.name for tool in self._tools}
        return calls if not region.whole or known.issuperset(call.name for call in calls) else ()

    def _emit_calls(self) -> bool:
        self._calls, self._known = self._calls + len(self._region_buffer.calls), None
        self._segments.call(self._region_buffer.raw, self._region_buffer.calls)
        self._leave()
        return True

    def _break(self) -> bool:
        """Parse the held region again, as no call. If text outside regions isn't shown, the region becomes text."""
        self._broken, self._known = self._broken + 1, None
        raw, self._region_buffer = self._region_buffer.raw, RegionBuffer()
        self._leave()
        if self._outside_kind is Kind.TEXT:
            self._buffer = raw + self._buffer
            found = (one.delimiter.pattern.match(self._buffer) for one in self._hidden)
            token = next((match.group() for match in found if match is not None), "")
            if token:
                self._segments.skip(self._take(len(token)), Kind.TEXT)
            else:
                self._emit_text(1, waits=True)
        else:
            self._segments.add_text(raw, Kind.TEXT, waits=False)
        return True

    def _leave(self) -> None:
        self._open, self._state = None, self._outside

    def _emit_text(self, chars: int, *, waits: bool) -> None:
        if chars:
            self._segments.add_text(self._take(chars), self._kind, waits=waits)

    def _take(self, chars: int) -> str:
        taken, self._buffer = self._buffer[:chars], self._buffer[chars:]
        return taken


MOST_BLANKS = 16
"""The most characters of white space before a delimiter that belong to it. Earlier ones are text."""
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


class RegionBuffer:
    """The text of a region so far, and the calls that were read from it.

    Its value, or the current one of several, begins at `begin` and ends at `end`.
    """

    def __init__(self, opening: str = "", name: str | None = None) -> None:
        """Take the opening of a region, and the call's name if the opening has it."""
        self.scanner = JsonScanner()
        self.calls: tuple[Call, ...] = ()
        self.chars = self.begin = len(opening)
        self.end = 0
        self._name = name
        self._parts = [opening]

    @property
    def room(self) -> int:
        """How many more characters may be held."""
        return LONGEST_CALL - self.chars

    @property
    def raw(self) -> str:
        """All text of the region so far."""
        return "".join(self._parts)

    @property
    def value(self) -> CallRegion:
        """The current value, in the text of the region so far."""
        return CallRegion(self.raw, self.begin, self.end, self._name)

    def add(self, text: str) -> None:
        """Take more of the region."""
        self._parts.append(text)
        self.chars += len(text)

    def begin_value(self) -> None:
        """Expect another value next."""
        self.begin = self.chars
        self.scanner = JsonScanner()

    def end_value(self) -> None:
        """Note that the value is whole."""
        self.end = self.chars


class Segment(NamedTuple):
    """A part of a reply: `raw`, as it was written, and the pieces that it becomes."""

    raw: str
    pieces: tuple[Piece, ...]


class Segments:
    """Collects segments in the order of the reply.

    `at_start`: there was no text and no call yet. `behind_call`: only white space came since a call.
    """

    def __init__(self) -> None:
        self.at_start = True
        self.behind_call = False
        self.trims = False
        """Whether white space that comes next belongs to the delimiter before it."""
        self._made: list[Segment] = []
        self._kind = Kind.TEXT
        self._text = ""
        self._blanks = ""

    def take(self) -> list[Segment]:
        """Return the segments since the last call."""
        self._close()
        made, self._made = self._made, []
        return made

    def add_text(self, text: str, kind: Kind, *, waits: bool) -> None:
        """Add text of a kind. `waits`: white space at its end may belong to a delimiter that follows."""
        if self.trims:
            rest = text.lstrip()
            self._add(text[: len(text) - len(rest)])
            text = rest
        if not text:
            return
        self.trims = False
        text, self._blanks = self._blanks + text, ""
        if waits:
            cut = max(len(text.rstrip()), len(text) - MOST_BLANKS)
            text, self._blanks = text[:cut], text[cut:]
        self._append(text, kind)

    def delimit(self, raw: str) -> None:
        """Add a delimiter."""
        self._close()
        self._add(self._take_blanks() + raw)
        self.trims = True

    def skip(self, raw: str, kind: Kind) -> None:
        """Add text that is not shown, amid text of a kind."""
        self.flush(kind)
        self._close()
        self._made.append(Segment(raw, ()))

    def call(self, raw: str, calls: tuple[Call, ...]) -> None:
        """Add a region of calls."""
        self._close()
        self._made.append(Segment(self._take_blanks() + raw, calls))
        self.trims = self.behind_call = True
        self.at_start = False

    def flush(self, kind: Kind) -> None:
        """Add the waiting white space to text of a kind."""
        self._append(self._take_blanks(), kind)

    def _take_blanks(self) -> str:
        blanks, self._blanks = self._blanks, ""
        return blanks

    def _append(self, text: str, kind: Kind) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._close()
            self._kind = kind
        self._text += text
        if kind is Kind.TEXT:
            self.at_start = self.behind_call = False

    def _close(self) -> None:
        text, self._text = self._text, ""
        if not text:
            return
        of_kind: dict[Kind, tuple[Piece, ...]] = {Kind.TEXT: (text,), Kind.THOUGHT: (Thought(text),)}
        self._made.append(Segment(text, of_kind.get(self._kind, ())))

    def _add(self, raw: str) -> None:
        """Add a part of a delimiter."""
        if raw:
            self._close()
            self._made.append(Segment(raw, ()))


DEEPEST = 64
"""The most nested objects and arrays. Deeper ones count as broken."""
_BLANKS = re.compile(r"[ \t\n\r]*")
_BETWEEN = re.compile(r"[-+.,: \t\n\r0-9Eaeflnrstu]*")
"""Numbers, true, false, null, and what separates values."""
_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
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

    def scan(self, text: str, at: int = 0) -> int:
        """Read on from `at`. Return where the value ends, where it is broken, or else the end of the text."""
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


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
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
