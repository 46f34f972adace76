"""What replicas ask of each other, and how: requests lie where their reader looks, and are announced on its channel, which may lose messages.

The one that runs a conversation's turn decides all that happens in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog
from redis.asyncio import Redis

from engine.trace import NOBODYS, Trace, current
from sessions.errors import Refused, StoreDown
from sessions.events import CallState
from sessions.interpreting.source import Grown, Growth
from sessions.records import Owner
from sessions.store.ownership import Ownership
from sessions.store.redis.client import COLLECT, POST, run_script
from sessions.turn.calls import CallAnswer
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


class AskAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="answer_call"):
    """Settle a call, or decide about it."""

    answer: CallAnswer


class AskGrow(msgspec.Struct, frozen=True, kw_only=True, tag="grow"):
    """Take more of a source that is translated."""

    growth: Growth


class AskAbove(msgspec.Struct, frozen=True, kw_only=True, tag="above"):
    """What the floor above asks of its like. No conversation is meant."""

    body: str


Ask = AskSend | Cancel | AskDelete | AskAnswer | AskGrow | AskAbove


class Order(msgspec.Struct, frozen=True, kw_only=True, tag="order", omit_defaults=True):
    """A request of another replica, which waits for the answer. `at_ms`: when it was posted, by the store's clock, which writes it.

    `trace`: what the client's request is called, for logs and spans there.
    """

    number: str
    sender: str
    owner: Owner
    conversation_id: str
    ask: Ask
    at_ms: int = 0
    trace: Trace = NOBODYS


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
    """What became of an order. `turn_id`, `already`: what a cancel met; a message had its turn `already`. `state`: a call's; `grown`: a source's; `body`: the floor above's."""

    number: str
    refusal: Refusal | None = None
    turn_id: str | None = None
    already: bool = False
    state: CallState | None = None
    grown: Grown | None = None
    body: str | None = None


class RefusedElsewhere(Refused):
    """Another replica refused a request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.code = refusal.code  # type: ignore[misc]
        self.retryable = refusal.retryable  # type: ignore[misc]
        self.retry_after_ms = refusal.retry_after_ms


encode_message = msgspec.json.Encoder().encode
decode_message = msgspec.json.Decoder(Order | Answer).decode


LOOK_S = 1.0
AT_ONCE = 64
ANSWER_S = 15.0
"""How long an order may wait for its answer; a reader that finds it later, by the store's clock, leaves it undone."""
KEPT_MS = int(2 * ANSWER_S * 1000)
"""How long a box stays that nobody empties."""
REMEMBERED = 1024

_log = structlog.get_logger("midstream.rpc")


class OwnerGone(Exception):
    """The replica that was asked is dead; what it ran may be closed."""


class Rpc:
    """Sends messages, and takes those for this replica."""

    def __init__(self, client: Redis, *, ownership: Ownership) -> None:
        self._client = client
        self._ownership = ownership
        self._asked: dict[str, asyncio.Future[Answer]] = {}
        self._seen: deque[str] = deque(maxlen=REMEMBERED)
        self._read: list[bytes] = []  # they are still in the box
        self._news = asyncio.Event()

    def nudge(self) -> None:
        """A message may be waiting."""
        self._news.set()

    async def run(self, take: Callable[[Order], None]) -> None:
        """Takes messages until cancelled. `take` is given each order once, and answers it by `answer`."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
            self._news.clear()
            with suppress(StoreDown):  # the next look will find them
                await self._empty(take)

    async def ask(self, replica: str, owner: Owner, conversation_id: str, ask: Ask) -> Answer:
        """Asks a replica, and waits for its answer. Raises OwnerGone; StoreDown where it does not answer."""
        order = Order(
            number=secrets.token_hex(8),
            sender=self._ownership.replica,
            owner=owner,
            conversation_id=conversation_id,
            ask=ask,
            trace=current.get(),
        )
        answer = self._asked[order.number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._post(replica, order)
                return await self._answered(answer, replica)
        except TimeoutError:
            raise StoreDown("The replica that writes this conversation does not answer.") from None
        finally:
            del self._asked[order.number]

    async def answer(self, order: Order, answer: Answer) -> None:
        """Answers an order. Raises StoreDown."""
        await self._post(order.sender, answer)

    async def _answered(self, answer: asyncio.Future[Answer], replica: str) -> Answer:
        while not answer.done():
            await asyncio.wait([answer], timeout=LOOK_S)
            if not answer.done() and not await self._ownership.lives(replica):
                raise OwnerGone(replica)
        return answer.result()

    async def _post(self, replica: str, message: Order | Answer) -> None:
        written: list[str | bytes | int] = [replica, encode_message(message), KEPT_MS]
        await run_script(self._client, POST, [box_of(replica)], written)

    async def _empty(self, take: Callable[[Order], None]) -> None:
        """Reads all messages. Each call takes out those of the one before: where an answer is lost, they come again."""
        box = [box_of(self._ownership.replica)]
        while True:
            read: list[str | bytes | int] = [AT_ONCE, len(self._read), _sha1(self._read)]
            now_ms, self._read = await run_script(self._client, COLLECT, box, read)
            for message in self._read:
                self._open(message, now_ms, take)
            if not self._read:
                return

    def _open(self, message: bytes, now_ms: int, take: Callable[[Order], None]) -> None:
        try:
            read = decode_message(message)
        except msgspec.DecodeError:  # of another version
            _log.warning("message not understood")
            return
        if isinstance(read, Answer):
            asked = self._asked.get(read.number)
            if asked is not None and not asked.done():
                asked.set_result(read)
        elif read.number not in self._seen:  # a store that stalled takes a message twice
            self._seen.append(read.number)
            if now_ms - read.at_ms < ANSWER_S * 1000:
                take(read)


def _sha1(messages: list[bytes]) -> str:
    """Names the last of them for the store."""
    return hashlib.sha1(messages[-1], usedforsecurity=False).hexdigest() if messages else ""


def box_of(replica: str) -> str:
    """Where its messages are."""
    return f"ms:mail:{replica}"
