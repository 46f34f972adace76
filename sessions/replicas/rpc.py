"""Requests between replicas, and their answers, by way of inboxes in the store."""

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

from engine.messages import NO_TRACE, Trace, current_trace
from sessions.errors import Refused, StoreDown
from sessions.events import CallState
from sessions.records import Owner
from sessions.store.client import COLLECT, POST, run_script
from sessions.store.ownership import Ownership
from sessions.turn.interfaces import Grown, Growth
from sessions.turn.message_request import GenerationConfig, MessageRequest
from sessions.turn.tool_calls import Decision, Result
from sessions.turn.turn import Cancel
from sessions.turn.turn_state import TurnMessageIds

PATIENCE_S = 3.0
"""How long to wait for another replica: one of an older version never answers."""
_NOBODYS = Owner("", "")
AnswerPeer = Callable[[str], str]


class GatheredAnswers(msgspec.Struct, frozen=True):
    """The replicas' answers by name, this one's first; and the names of living replicas that did not answer."""

    answers: tuple[tuple[str, str], ...]
    silent: tuple[str, ...] = ()


class ScatterGather:
    """Asks other replicas, and answers them."""

    def __init__(self, rpc: Rpc, ownership: Ownership) -> None:
        self._rpc = rpc
        self._ownership = ownership
        self._answer_peer: AnswerPeer | None = None

    def answered_by(self, answer_peer: AnswerPeer) -> None:
        """Set what answers questions. It is synchronous, and no question makes it raise."""
        self._answer_peer = answer_peer

    def respond(self, body: str) -> str:
        """Return this replica's answer; empty if there is no layer above."""
        return "" if self._answer_peer is None else self._answer_peer(body)

    async def ask_all(self, body: str) -> GatheredAnswers:
        """Return every replica's answer. Raises StoreDown if the replicas are not known."""
        others = await self._ownership.others()
        here = (self._ownership.replica, self.respond(body))
        answers = await asyncio.gather(*(self._request(replica, body) for replica in others))
        answered = [(name, answer) for name, answer in zip(others, answers, strict=True) if answer]
        silent = [name for name, answer in zip(others, answers, strict=True) if answer is None]
        return GatheredAnswers((here, *answered), tuple(silent))

    async def _request(self, replica: str, body: str) -> str | None:
        """Return the answer; empty if the replica is gone, None if it does not answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer: RpcResponse = await self._rpc.ask(replica, _NOBODYS, "", PeerRequest(body=body))
        except ReplicaGone:
            return ""
        except (StoreDown, RefusedElsewhere, TimeoutError):
            return None
        return answer.body or None


class SendRequest(msgspec.Struct, frozen=True, kw_only=True, tag="send"):
    """Accept a message. `names`: the ids of its turn; `cancelled`: while on its way; `crowds`: its sender is heavy."""

    send: MessageRequest
    generation: GenerationConfig
    names: TurnMessageIds
    cancelled: bool
    crowds: bool = False


class DeleteRequest(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    """Remove the conversation."""


class PeerRequest(msgspec.Struct, frozen=True, kw_only=True, tag="above"):
    """A question of the layer above to its peers, about no conversation."""

    body: str


RequestBody = SendRequest | Cancel | DeleteRequest | Result | Decision | Growth | PeerRequest


class RpcRequest(msgspec.Struct, frozen=True, kw_only=True, tag="order", omit_defaults=True):
    """A request of another replica, which waits for the answer. `at_ms`: when it was posted, by the store's clock.

    `trace`: the ids of the client's request, for logs and spans.
    """

    number: str
    sender: str
    owner: Owner
    conversation_id: str
    ask: RequestBody
    at_ms: int = 0
    trace: Trace = NO_TRACE


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was refused, for its sender."""

    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None

    @classmethod
    def of(cls, refused: Refused) -> Refusal:
        """Make one from an error."""
        return cls(refused.code, str(refused), refused.retryable, refused.retry_after_ms)


class RpcResponse(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The outcome of a request. `turn_id`, `already`: what a cancel found, or that a message was a duplicate.

    `state`: a call's; `grown`: a source's; `body`: the answer of the layer above.
    """

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
        self.code = refusal.code
        self.retryable = refusal.retryable  # type: ignore[misc]
        self.retry_after_ms = refusal.retry_after_ms


encode_message = msgspec.json.Encoder().encode
decode_message = msgspec.json.Decoder(RpcRequest | RpcResponse).decode


LOOK_S = 1.0
AT_ONCE = 64
ANSWER_S = 15.0
"""How long a request may wait for its answer; a reader that finds it later, by the store's clock, ignores it."""
KEPT_MS = int(2 * ANSWER_S * 1000)
"""How long an unread inbox lives."""
REMEMBERED = 1024

_log = structlog.get_logger("midstream.rpc")


class ReplicaGone(Exception):
    """The other replica is dead; its turns may be closed."""


class Rpc:
    """Sends messages to other replicas, and reads this one's inbox.

    Requests are stored for their reader, and announced on its channel, which may lose messages.
    """

    def __init__(self, client: Redis, *, ownership: Ownership) -> None:
        self._client = client
        self._ownership = ownership
        self._pending: dict[str, asyncio.Future[RpcResponse]] = {}
        self._seen: deque[str] = deque(maxlen=REMEMBERED)
        self._read: list[bytes] = []  # these are still in the inbox, too
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Note that a message may be waiting."""
        self._wake.set()

    async def run(self, take: Callable[[RpcRequest], None]) -> None:
        """Take messages until cancelled. `take` is given each request once, and answers it by `answer`."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()
            with suppress(StoreDown):  # the next read finds them
                await self._empty(take)

    async def ask(self, replica: str, owner: Owner, conversation_id: str, ask: RequestBody) -> RpcResponse:
        """Ask a replica and wait for its answer. Raises ReplicaGone, or StoreDown if it does not answer."""
        order = RpcRequest(
            number=secrets.token_hex(8),
            sender=self._ownership.replica,
            owner=owner,
            conversation_id=conversation_id,
            ask=ask,
            trace=current_trace.get(),
        )
        answer = self._pending[order.number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._post(replica, order)
                return await self._answered(answer, replica)
        except TimeoutError:
            raise StoreDown("The server that writes this conversation does not answer.") from None
        finally:
            del self._pending[order.number]

    async def answer(self, order: RpcRequest, answer: RpcResponse) -> None:
        """Answer a request. Raises StoreDown."""
        await self._post(order.sender, answer)

    async def _answered(self, answer: asyncio.Future[RpcResponse], replica: str) -> RpcResponse:
        while not answer.done():
            await asyncio.wait([answer], timeout=LOOK_S)
            if not answer.done() and not await self._ownership.is_alive(replica):
                raise ReplicaGone(replica)
        return answer.result()

    async def _post(self, replica: str, message: RpcRequest | RpcResponse) -> None:
        written: list[str | bytes | int] = [replica, encode_message(message), KEPT_MS]
        await run_script(self._client, POST, [inbox_key(replica)], written)

    async def _empty(self, take: Callable[[RpcRequest], None]) -> None:
        """Read all messages. Each call removes those of the call before, so a lost answer is read again."""
        box = [inbox_key(self._ownership.replica)]
        while True:
            last = hashlib.sha1(self._read[-1], usedforsecurity=False).hexdigest() if self._read else ""
            read: list[str | bytes | int] = [AT_ONCE, len(self._read), last]
            now_ms, self._read = await run_script(self._client, COLLECT, box, read)
            for message in self._read:
                self._open(message, now_ms, take)
            if not self._read:
                return

    def _open(self, message: bytes, now_ms: int, take: Callable[[RpcRequest], None]) -> None:
        try:
            read = decode_message(message)
        except msgspec.DecodeError:  # sent by another version
            _log.warning("message not understood")
            return
        if isinstance(read, RpcResponse):
            pending = self._pending.get(read.number)
            if pending is not None and not pending.done():
                pending.set_result(read)
        elif read.number not in self._seen:  # a store that stalled may take a message twice
            self._seen.append(read.number)
            if now_ms - read.at_ms < ANSWER_S * 1000:
                take(read)


def inbox_key(replica: str) -> str:
    """Return the key of a replica's inbox."""
    return f"ms:mail:{replica}"
