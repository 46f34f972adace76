"""Parses a reply while it is written: text goes in, however it is cut, and segments come out once they are certain.

Nothing is lost: what looked like a call and is none becomes text, and all segments joined are the reply as written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import regex

from engine.parsing.delimiters import ActiveDelimiter, find, is_decided, seek
from engine.parsing.formats import Delimiter, Kind, Region
from engine.parsing.openings import Openings
from engine.parsing.region_buffer import RegionBuffer
from engine.parsing.segments import Segment, Segments
from engine.reply_spec import Tool
from engine.text.pieces import Call

Match = regex.Match[str]


class Parser:
    """Takes one reply apart.

    White space around delimiters belongs to them. A region of calls is held back until it is whole. If it turns out to be
    none, its first character becomes text, and the rest is parsed again.
    """

    def __init__(self, openings: Openings, *, outside: Kind = Kind.TEXT, tools: Sequence[Tool] = ()) -> None:
        """Take the openings of a format. `outside`: the kind of text in no region. `tools`: what the model was shown."""
        self._openings = openings
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
            return [Segment(text, (text,), 0, len(text))]
        self._buffer += text
        self._run(ended=False)
        self._has_passed = self.passes
        return self._segments.take()

    def finish(self) -> list[Segment]:
        """Return what was held back, since the reply has ended."""
        self._run(ended=True)
        self._segments.flush(self._kind)
        return self._segments.take()

    def begin(self, text: str) -> list[Segment]:
        """Take the beginning of a reply that was told before: words of the template, or of a reply that is continued.

        If it ends within a call, that was told as text, so the rest of the call is text, too. Reasoning goes on.
        """
        segments = self.feed(text)
        if self._kind is Kind.CALLS:
            self._break()
        return segments + self.finish()

    @property
    def _watched(self) -> tuple[ActiveDelimiter, ...]:
        segments = self._segments
        return self._openings.watched(at_start=segments.at_start, behind_call=segments.behind_call)

    @property
    def _kind(self) -> Kind:
        return self._outside_kind if self._open is None else self._open.kind

    @property
    def _region(self) -> Region:
        """The region that is open."""
        assert self._open is not None  # noqa: S101 - only states inside of a region ask
        return self._open

    def _run(self, *, ended: bool) -> None:
        self._ended = ended
        while self._state():
            pass

    def _outside(self) -> bool:
        self._trim()
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
        sought = seek((*closes, *self._openings.hidden), self._buffer, ended=self._ended)
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
        """Read on behind a value of a reply that has only calls."""
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
        """Read on in a region of calls that only its close ends."""
        region_buffer, close = self._region_buffer, self._region.close
        match = None if close is None else find(close, self._buffer, ended=self._ended)
        if close and match and match.end() <= region_buffer.room and self._is_decided(close, match):
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
        if region.kind is Kind.CALLS:
            self._hold(match, region, blanks)
            return
        self._segments.delimit(self._take(len(raw) - blanks))
        self._openings.note_thought()
        self._open, self._state = region, self._inside

    def _hold(self, match: Match, region: Region, blanks: int) -> None:
        end = match.start("value") if region.is_json else match.end()
        name = match.group("name") if "name" in match.re.groupindex else None
        self._region_buffer = RegionBuffer(self._take(end - match.start() - blanks), name)
        self._open, self._state = region, self._in_json if region.is_json else self._in_calls

    def _complete(self) -> bool:
        """Read the whole value, which may still turn out to be no call."""
        calls = self._read()
        if not calls or not self._openings.has_room_for(len(self._region_buffer.calls) + len(calls)):
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
        self._openings.note_calls(len(self._region_buffer.calls))
        self._segments.call(self._region_buffer.whole, self._region_buffer.calls)
        self._leave()
        return True

    def _break(self) -> bool:
        """Parse again what is held, which is no call. If text outside of regions isn't shown, all of it becomes text."""
        self._openings.note_broken()
        raw, self._region_buffer = self._region_buffer.raw, RegionBuffer()
        self._leave()
        if self._outside_kind is Kind.TEXT:
            self._buffer = raw + self._buffer
            token = self._openings.hidden_token(self._buffer)
            if token:
                self._segments.skip(self._take(len(token)), Kind.TEXT)
            else:
                self._emit_text(1, waits=True)
        else:
            self._segments.add_text(raw, Kind.TEXT, waits=False)
        return True

    def _is_decided(self, delimiter: Delimiter, match: Match) -> bool:
        return is_decided(delimiter, match, self._buffer, ended=self._ended)

    def _leave(self) -> None:
        self._open, self._state = None, self._outside

    def _trim(self) -> None:
        """Add white space behind a delimiter to it."""
        if self._segments.trims:
            self._emit_text(len(self._buffer) - len(self._buffer.lstrip()), waits=False)

    def _emit_text(self, chars: int, *, waits: bool) -> None:
        if chars:
            self._segments.add_text(self._take(chars), self._kind, waits=waits)

    def _take(self, chars: int) -> str:
        taken, self._buffer = self._buffer[:chars], self._buffer[chars:]
        return taken
