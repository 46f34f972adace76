"""What replicas ask of each other: the one that runs a conversation's turn decides all that happens in it."""

from __future__ import annotations

import msgspec

from sessions.errors import Refused
from sessions.records import Owner
from sessions.turn.cancelling import Cancel
from sessions.turn.sends import Generation, Send
from sessions.turn.turn import Names


class AskSend(msgspec.Struct, frozen=True, kw_only=True, tag="send"):
    """Take a message in. `names`: of its turn; `cancelled`: its sender took it back while it was on its way."""

    send: Send
    generation: Generation
    names: Names
    cancelled: bool


class AskDelete(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    """Remove the conversation."""


Ask = AskSend | Cancel | AskDelete


class Order(msgspec.Struct, frozen=True, kw_only=True, tag="order", omit_defaults=True):
    """A request of another replica, which waits for the answer. `at_ms`: when it was posted, by the store's clock, which writes it."""

    number: str
    sender: str
    owner: Owner
    conversation_id: str
    ask: Ask
    at_ms: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was refused, as its sender is told."""

    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None

    @classmethod
    def of(cls, refused: Refused) -> Refusal:
        """The words of an error."""
        return cls(refused.code, str(refused), refused.retryable, refused.retry_after_ms)


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What became of an order. `turn_id`, `already`: what a cancel met; a message had its turn `already`."""

    number: str
    refusal: Refusal | None = None
    turn_id: str | None = None
    already: bool = False


class RefusedElsewhere(Refused):
    """Another replica refused a request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.code = refusal.code  # type: ignore[misc]
        self.retryable = refusal.retryable  # type: ignore[misc]
        self.retry_after_ms = refusal.retry_after_ms


encode_letter = msgspec.json.Encoder().encode
decode_letter = msgspec.json.Decoder(Order | Answer).decode
