"""Converts a reply to Anthropic's terms: the events of a stream, or the whole of it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from connections.api.anthropic.errors import error_of
from connections.api.anthropic.schema import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    MessageDelta,
    MessageEnd,
    MessageError,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    ReplyMessage,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ThinkingTokens,
    ToolUseBlock,
)
from connections.api.errors import problem_of
from connections.api.replies import problem_at_end
from engine.messages import ToolCall
from sessions.errors import Refused
from sessions.events import Done, Reason
from sessions.running.ephemeral import EphemeralReply, Piece, ReasoningPiece, TextPiece

_REASONS: dict[Reason, StopReason] = {
    Reason.STOP: "end_turn",
    Reason.TOOLS: "tool_use",
    Reason.LENGTH: "max_tokens",
    Reason.TIMEOUT: "max_tokens",
    Reason.FILTERED: "refusal",
}
_NO_INPUT = msgspec.Raw(b"{}")
_encode = msgspec.json.Encoder().encode


class MessagesEncoder:
    """Converts one stream. `shows_reasoning`: reasoning is sent; otherwise only a sign of it."""

    def __init__(self, turn_id: str, *, shows_reasoning: bool = True) -> None:
        self._turn_id = turn_id
        self._shows_reasoning = shows_reasoning
        self._begun = False
        self._index = -1
        self._open: type[TextPiece | ReasoningPiece] | None = None
        self._reasoning_hash = hashlib.sha256()

    def open(self) -> bytes:
        """Return nothing: a message begins with the count of its prompt."""
        return b""

    def begin(self, reply: EphemeralReply) -> bytes:
        """Return the message, as far as it is known."""
        self._begun = True
        count = reply.turn.count
        usage = _usage(count.prompt_tokens, count.cached_tokens)
        message = ReplyMessage(id=message_id(self._turn_id), model=reply.model, usage=usage)
        return _encode_events(MessageStart(message), Ping())

    def piece(self, piece: Piece) -> bytes:
        """Return what a piece adds to the open block, or a block of its own."""
        match piece:
            case TextPiece(text):
                return (
                    _encode_events(*self._append_delta(TextPiece, TextBlock(""), TextDelta(text)))
                    if text
                    else b""
                )
            case ReasoningPiece(text):
                return _encode_events(*self._add_reasoning(text))
            case ToolCall():
                return _encode_events(*self._call(piece))

    def end(self, reply: EphemeralReply) -> bytes:
        """Return the reason and the usage, or the failure."""
        done = reply.ended
        if (problem := problem_at_end(done)) is not None:
            return _encode_events(MessageError(error_of(problem), self._turn_id))
        begun = b"" if self._begun else self.begin(reply)
        return begun + _encode_events(
            *self._close(), MessageDelta(_end(done, reply.stop), usage_of(done)), MessageStop()
        )

    def fail(self, refused: Refused) -> bytes:
        """Return a failure outside the reply."""
        return _encode_events(MessageError(error_of(problem_of(refused)), self._turn_id))

    def ping(self) -> bytes:
        """Return a sign of life."""
        return _encode_events(Ping())

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        more = list(self._append_delta(ReasoningPiece, ThinkingBlock("", ""), ThinkingDelta(text)))
        self._reasoning_hash.update(text.encode())
        yield from more if self._shows_reasoning else more[:-1]

    def _append_delta(
        self, kind: type[TextPiece | ReasoningPiece], empty: Block, delta: TextDelta | ThinkingDelta
    ) -> Iterator[Event]:
        if self._open is not kind:
            yield from self._close()
            yield self._start(empty)
            self._open = kind
        yield BlockDelta(self._index, delta)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        yield from self._close()
        yield self._start(ToolUseBlock(call.call_id, call.name, _NO_INPUT))
        yield BlockDelta(self._index, InputDelta(call.arguments))
        yield BlockStop(self._index)

    def _start(self, block: Block) -> BlockStart:
        self._index += 1
        return BlockStart(self._index, block)

    def _close(self) -> Iterator[Event]:
        """End the open block."""
        if self._open is ReasoningPiece:
            yield BlockDelta(self._index, SignatureDelta(_signature(self._reasoning_hash.hexdigest())))
            self._reasoning_hash = hashlib.sha256()
        if self._open is not None:
            yield BlockStop(self._index)
            self._open = None


def encode_message(reply: EphemeralReply, pieces: Sequence[Piece], *, shows_reasoning: bool = True) -> bytes:
    """Return a complete reply as JSON. Raises Problem if it has no regular end."""
    done = reply.ended
    if (problem := problem_at_end(done)) is not None:
        raise problem
    end = _end(done, reply.stop)
    message = ReplyMessage(
        id=message_id(reply.turn_id),
        model=reply.model,
        content=tuple(_blocks(pieces, shows_reasoning=shows_reasoning)),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=usage_of(done),
    )
    return _encode(message)


def message_id(turn_id: str) -> str:
    """Return the message's id for a turn."""
    return f"msg_{turn_id.removeprefix('turn_')}"


def usage_of(done: Done) -> MessageUsage:
    """Return the usage."""
    counted = done.usage
    return _usage(
        counted.prompt_tokens, counted.cached_tokens, counted.generated_tokens, counted.reasoning_tokens
    )


def _usage(prompt: int, cached: int, generated: int = 0, thought: int = 0) -> MessageUsage:
    return MessageUsage(prompt - cached, generated, cached, ThinkingTokens(thought))


def _end(done: Done, stop: str | None) -> MessageEnd:
    return MessageEnd("stop_sequence" if stop is not None else _REASONS[done.reason], stop)


def _blocks(pieces: Sequence[Piece], *, shows_reasoning: bool) -> Iterator[Block]:
    """Join neighbours of one kind to blocks."""
    kind: type[TextPiece | ReasoningPiece] | None = None
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            yield from _block(kind, texts, shows_reasoning=shows_reasoning)
            kind, texts = None, []
            yield ToolUseBlock(piece.call_id, piece.name, msgspec.Raw(piece.arguments.encode()))
        elif piece.text:
            if kind is not type(piece):
                yield from _block(kind, texts, shows_reasoning=shows_reasoning)
                kind, texts = type(piece), []
            texts.append(piece.text)
    yield from _block(kind, texts, shows_reasoning=shows_reasoning)


def _block(
    kind: type[TextPiece | ReasoningPiece] | None, texts: Sequence[str], *, shows_reasoning: bool
) -> Iterator[Block]:
    text = "".join(texts)
    if kind is TextPiece:
        yield TextBlock(text)
    elif kind is ReasoningPiece:
        signature = _signature(hashlib.sha256(text.encode()).hexdigest())
        yield ThinkingBlock(text if shows_reasoning else "", signature)


def _signature(digest: str) -> str:
    """Return a signature. Its text says what it is: clients return it unchanged, and nobody checks it."""
    return f"sha256:{digest}"


def _encode_events(*events: Event) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(event.__struct_config__.tag).encode(), _encode(event))
        for event in events
    )
