"""Makes pieces of an upstream's chunks: whole characters of text and of thoughts, and whole calls, in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.messages import Chunk, Reasoning, ToolCallOutput
from engine.text.characters import whole_length
from engine.upstream.wire.calls import CompleteCall, ToolCallAssembler
from engine.upstream.wire.chunks import Choice
from engine.upstream.wire.logprobs import UpstreamLogprobs

Piece = Chunk | Reasoning | ToolCallOutput


class UpstreamPieces:
    """Makes the pieces of one reply. Their numbers of tokens are filled in later."""

    def __init__(self, request_id: str, upstream: str, *, logprobs: bool = False) -> None:
        """Take the request's id, the upstream's name, and whether log-probabilities were asked for."""
        self._request_id = request_id
        self._logprobs = UpstreamLogprobs() if logprobs else None
        self._calls = ToolCallAssembler(upstream)
        self._waiting = ""
        self._thinks = False  # what waits is a thought

    def take(self, choice: Choice) -> Iterator[Piece]:
        """Take a chunk, and yield the pieces that are ready now. Raises EngineLost if there are too many calls."""
        news = choice.news
        if news.thought:
            yield from self._extend(news.thought, thinks=True)
        if self._logprobs is not None:
            self._add_logprobs(choice)
        if news.content:
            yield from self._extend(news.content, thinks=False)
        if news.tool_calls:
            yield from self._flush()
            for call in self._calls.take(news.tool_calls):
                yield from self._call(call)

    def finish(self) -> Iterator[Piece]:
        """Yield the pieces that were held back, since the reply has ended."""
        yield from self._close_call()
        yield from self._flush()

    def _add_logprobs(self, choice: Choice) -> None:
        assert self._logprobs is not None  # noqa: S101 - the caller has checked
        news = choice.news
        if news.thought or news.tool_calls:
            self._logprobs.pass_over(news.content or "")
        else:
            self._logprobs.add(news.content or "", choice.logprobs)

    def _extend(self, text: str, *, thinks: bool) -> Iterator[Piece]:
        yield from self._close_call()
        if thinks is not self._thinks:
            yield from self._flush()
        self._thinks = thinks
        self._waiting += text
        yield from self._emit(whole_length(self._waiting))

    def _close_call(self) -> Iterator[Piece]:
        for call in self._calls.close():
            yield from self._call(call)

    def _call(self, call: CompleteCall) -> Iterator[Piece]:
        if call.is_valid:
            yield ToolCallOutput(self._request_id, call.name, call.arguments, 0, call.call_id)
        elif call.text:  # what looked like a call is text
            self._thinks = False
            if self._logprobs is not None:
                self._logprobs.pass_over(call.text)
            self._waiting += call.text
            yield from self._flush()

    def _flush(self) -> Iterator[Piece]:
        yield from self._emit(len(self._waiting))

    def _emit(self, length: int) -> Iterator[Piece]:
        text, self._waiting = self._waiting[:length], self._waiting[length:]
        if not text:
            return
        if self._thinks:
            yield Reasoning(self._request_id, text, 0)
        else:
            logprobs = self._logprobs.leave(text) if self._logprobs is not None else ()
            yield Chunk(self._request_id, text, 0, logprobs)
