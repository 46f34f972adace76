"""An async client of wire protocol v1: many conversations, and replies that can be stopped and outlive connections.

async with midstream.connect("ws://127.0.0.1:8000/v1/ws") as client:
    reply = await client.send("Count from 1 to 300.")
    async for text in reply:
        print(text, end="")
        if "100" in reply.text:
            await reply.cancel()
    print(reply.done["reason"])
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from midstream.reply import Interpretation, Reply, Server
from midstream.server_connection import (
    ClientError,
    Disconnected,
    Frame,
    NotConnected,
    Refused,
    ServerConnection,
    opened,
    socket_url,
)

LONGEST_PAGE = 200
"""Most messages of a history page: the protocol's bound."""
LONGEST_WAIT_S = 60.0
"""Longest `retry_after_ms` that a reconnecting client accepts; a longer one is another kind of limit."""
WAIT_MS = 1000
"""Milliseconds to wait if a refusal does not say."""


@asynccontextmanager
async def connect(
    url: str,
    *,
    client_id: str | None = None,
    token: str | None = None,
    features: Sequence[str] = (),
    reconnecting: Reconnecting | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """Connect a client. `token` is an API key, a JWT or a ticket; `options` are those of `websockets`.

    `url` is the address of the WebSocket or of the page, or `host:port`.

    `features` are further events that the client wants: `reasoning`, `tools` (calls of tools).

    Raises NotConnected, Refused, Disconnected, OSError.
    """
    client = Client(partial(opened, socket_url(url), **options), reconnecting or Reconnecting())
    given = {"client_id": client_id, "token": token, "features": list(features)}
    await client.open({"type": "hello"} | {name: value for name, value in given.items() if value})
    keeping = asyncio.create_task(client.keep())
    try:
        yield client
    finally:
        keeping.cancel()
        await asyncio.wait((keeping,))
        await client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnecting:
    """How a client handles a lost connection.

    It reconnects for `timeout_s` seconds, with growing, random pauses (0: never). `grace_s` (0 to 60) is how long
    meanwhile the server lets unread replies run. `watch` is called with each loss, and with None after each reconnection.
    """

    timeout_s: float = 60.0
    grace_s: float = 20.0
    watch: Callable[[Disconnected | None], None] | None = None


class Page(list[Frame]):
    """Rows of a list; `has_more`: there are further ones."""

    def __init__(self, rows: Iterable[Frame], *, has_more: bool) -> None:
        super().__init__(rows)
        self.has_more = has_more


class Found(list[Frame]):
    """The hits of a search; `next` continues it, None if all was searched."""

    def __init__(self, hits: Iterable[Frame], *, next: str | None) -> None:  # noqa: A002 - the protocol's word
        super().__init__(hits)
        self.next = next


class Client:
    """A connected client. Use `connect` to make one."""

    def __init__(self, dial: Callable[..., Awaitable[ServerConnection]], reconnecting: Reconnecting) -> None:
        self.ready: Frame = {}
        """The server's `ready` frame: its models, limits and tools."""
        self._dial = dial
        self._reconnecting = reconnecting
        self._live = LiveReplies(self)
        self._hello: Frame = {}
        self._line: ServerConnection | None = None
        self._over: ClientError | None = None
        self._changed = asyncio.Event()

    async def send(self, content: str, *, conversation_id: str = "default", **fields: Any) -> Reply:
        """Send a message; return its reply once it is accepted. Further fields are the protocol's.

        With `on_busy="interrupt"` a running reply ends at what was read of it. A lost connection duplicates no message. Raises
        Refused, Disconnected.
        """
        return await self.begin(_frame("send", conversation_id=conversation_id, content=content) | fields)

    async def edit(
        self, message_id: str, content: str, *, conversation_id: str = "default", **fields: Any
    ) -> Reply:
        """Edit a user's message: the new one begins a branch next to the old one. Raises Refused, Disconnected."""
        ids = {"conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(_frame("edit", content=content, **ids) | fields)

    async def regenerate(self, message_id: str, *, conversation_id: str = "default", **fields: Any) -> Reply:
        """Generate another reply next to the one with this id. Raises Refused, Disconnected."""
        ids = {"conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(_frame("regenerate", **ids) | fields)

    async def continue_reply(
        self, message_id: str, *, conversation_id: str = "default", **fields: Any
    ) -> Reply:
        """Continue a reply that was stopped or cut; return the rest. Raises Refused, Disconnected."""
        ids = {"conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(_frame("continue", **ids) | fields)

    async def interpret(
        self, target: str, *, source: str = "auto", conversation_id: str = "default", **fields: Any
    ) -> Interpretation:
        """Begin a live translation into a language (`zh`), for clients with the feature `interpret`.

        Further fields are the protocol's. Raises Refused, Disconnected.
        """
        frame = _frame("interpret.start", conversation_id=conversation_id, source=source, target=target)
        return Interpretation(self, await self.begin(frame | fields))

    async def continue_interpretation(
        self, message_id: str, source: str, *, conversation_id: str = "default", **fields: Any
    ) -> Interpretation:
        """Continue a live translation that was stopped or cut; `source`: its source in the history. Raises Refused, Disconnected."""
        reply = await self.continue_reply(message_id, conversation_id=conversation_id, **fields)
        return Interpretation(self, reply, source)

    async def history(
        self,
        conversation_id: str = "default",
        *,
        limit: int = 50,
        before: str | None = None,
        leaf: str | None = None,
    ) -> Page:
        """Return the newest messages of a conversation, or those before the message `before`; oldest first.

        A `leaf` activates its branch. Raises Refused (`not_found`, `busy`), Disconnected.
        """
        query = _frame("history", conversation_id=conversation_id, limit=limit, before=before, leaf=leaf)
        page = await self.request(query)
        return Page(page["messages"], has_more=page["has_more"])

    async def conversations(self, *, limit: int = 50, before: str | None = None) -> Page:
        """Return the owner's conversations, newest first. `before`: the last id of the previous page.

        Raises Refused, Disconnected.
        """
        page = await self.request(_frame("conversations", limit=limit, before=before))
        return Page(page["conversations"], has_more=page["has_more"])

    async def search(self, query: str, *, limit: int = 20, before: str | None = None) -> Found:
        """Return the conversations with the words of a query, newest first. `before`: the `next` of the previous page.

        A page may have fewer hits than `limit`, or none, and still a `next`. Raises Refused, Disconnected.
        """
        page = await self.request(_frame("search", query=query, limit=limit, before=before))
        return Found(page["hits"], next=page.get("next"))

    async def share(self, conversation_id: str) -> str:
        """Share the current branch with everybody who has the link; return the link's id, as in `/s/ID`.

        Calling it again updates what the link shows. Raises Refused (`not_found`), Disconnected.
        """
        shared = await self.request(_frame("share", conversation_id=conversation_id))
        return str(shared["share_id"])

    async def unshare(self, conversation_id: str) -> None:
        """Revoke the link of a conversation. Raises Refused, Disconnected."""
        await self.request(_frame("unshare", conversation_id=conversation_id))

    async def rename(self, conversation_id: str, title: str) -> Frame:
        """Change a conversation's title; return its row. Raises Refused (`not_found`, `bad_params`), Disconnected."""
        renamed = await self.request(_frame("rename", conversation_id=conversation_id, title=title))
        row: Frame = renamed["conversations"][0]
        return row

    async def rejoin(self, conversation_id: str = "default") -> Reply | None:
        """Return the unfinished reply of a conversation (running, or with open calls), with what came of it so far.

        None if there is none. Raises Refused (`not_found`), Disconnected.
        """
        queued = self.ready["limits"]["max_queued_turns"]  # queued messages may follow that reply
        limit = min(1 + queued, LONGEST_PAGE)
        query = _frame("history", conversation_id=conversation_id, limit=limit)
        ref = uuid.uuid4().hex
        self._live.rejoined[ref] = None
        try:
            await self.request(query, ref=ref)
            return self._live.rejoined[ref]
        finally:
            del self._live.rejoined[ref]

    async def tool_result(
        self,
        call_id: str,
        *,
        content: str | None = None,
        error: str | None = None,
        conversation_id: str | None = None,
    ) -> Frame:
        """Send the result of a call that a client runs: `content`, or else an `error`. Return the `tool_ack` frame.

        Raises Refused (`conflict` if it was settled otherwise, `not_found`), Disconnected.
        """
        result = {"content": content, "error": error}
        return await self.request(
            _frame("tool_result", call_id=call_id, conversation_id=conversation_id, **result)
        )

    async def tool_decision(
        self,
        call_id: str,
        decision: Literal["allow", "deny"],
        *,
        args_sha256: str,
        args: str | None = None,
        conversation_id: str | None = None,
    ) -> Frame:
        """Allow or deny a call that needs approval, with the arguments that were shown, or with `args` instead.

        Return the `tool_ack` frame. Raises Refused (`conflict` if it was decided otherwise, `not_found`), Disconnected.
        """
        decided = {"decision": decision, "args_sha256": args_sha256, "args": args}
        return await self.request(
            _frame("tool_decision", call_id=call_id, conversation_id=conversation_id, **decided)
        )

    async def cancel(
        self,
        conversation_id: str = "default",
        *,
        turn_id: str | None = None,
        rollback: bool = False,
        seen_off: int | None = None,
    ) -> Frame:
        """Stop all turns of a conversation, or the one with `turn_id`. `Reply.cancel` keeps what was read here.

        `seen_off` says how much of the reply was seen; `rollback` removes the exchange. Return the `cancelled` frame. Raises
        Refused, Disconnected.
        """
        how = {"mode": "rollback" if rollback else "keep", "turn_id": turn_id, "seen_off": seen_off}
        return await self.request(_frame("cancel", conversation_id=conversation_id, **how))

    async def ack(self, conversation_id: str, seq: int) -> None:
        """Acknowledge all events up to `seq`. `Reply.ack` knows the seq of what was read."""
        await self.notify(_frame("ack", conversation_id=conversation_id, seq=seq))

    async def ping(self) -> float:
        """Return the seconds until the server has answered. Raises Disconnected."""
        begun = time.monotonic()
        await self.request(_frame("ping"))
        return time.monotonic() - begun

    async def delete(self, conversation_id: str) -> None:
        """Delete a conversation. Raises Refused (`not_found`), Disconnected."""
        await self.request(_frame("delete", conversation_id=conversation_id))

    async def authenticate(self, token: str) -> None:
        """Use a newer token of the same principal, now and for later connections. Raises Refused, Disconnected."""
        await self.request(_frame("auth.refresh", token=token))
        self._hello["token"] = token

    async def begin(self, fields: Frame) -> Reply:
        """Send a message of any kind, under its `client_msg_id`; return its reply. Raises Refused, Disconnected."""
        name: str = fields.get("client_msg_id") or uuid.uuid4().hex
        seen = self._live.seen(fields["conversation_id"]) if fields.get("on_busy") == "interrupt" else {}
        frame = {"grace_s": self._reconnecting.grace_s} | seen | fields | {"client_msg_id": name}
        self._live.sending[name] = frame
        try:
            await self.request(frame, ref=name)
            return self._live.begun[name]
        finally:
            self._live.sending.pop(name, None)
            self._live.begun.pop(name, None)

    async def request(self, frame: Frame, *, ref: str | None = None) -> Frame:
        """Send a frame and return its answer. Raises Refused, Disconnected.

        It is sent again over the next connection if the answer was lost, or the server is about to stop.
        """
        while True:
            line = await self._connected()
            try:
                return await line.request(frame, ref=ref)
            except Disconnected:
                pass
            except Refused as refused:
                if refused.code != "draining" or not self._reconnecting.timeout_s:
                    raise
                if not self._live.has_any:
                    line.abandon()
            await self._left(line)

    async def notify(self, frame: Frame) -> None:
        """Send a frame that has no answer. It is not repeated if the connection is lost."""
        line = await self._connected()
        with suppress(Disconnected):
            await line.send(frame)

    async def open(self, hello: Frame) -> None:
        """Connect for the first time. Raises NotConnected, Refused, Disconnected, OSError."""
        self._hello = hello
        self._line = await self._opened()

    async def keep(self) -> None:
        """Stay connected until that fails; then all waiting calls raise."""
        while (line := self._line) is not None:
            lost = await line.lost()
            await line.close()
            self._set(None)
            self._watch(lost)
            try:
                line = await self._reopened(lost)
            except ClientError as error:
                self._give_up(error)
                return
            self._set(line)
            self._watch(None)
            await self._resume_all(line)

    async def close(self) -> None:
        """End the connection; waiting calls raise."""
        line, self._line = self._line, None
        self._give_up(Disconnected(None, "the client is closed", final=True))
        if line is not None:
            await line.close()

    async def _connected(self) -> ServerConnection:
        while self._line is None:
            if self._over is not None:
                raise self._over
            await self._changed.wait()
        return self._line

    async def _left(self, line: ServerConnection) -> None:
        """Wait until `line` is no longer the connection in use."""
        while self._line is line:
            await self._changed.wait()

    def _set(self, line: ServerConnection | None) -> None:
        self._line = line
        self._changed.set()
        self._changed = asyncio.Event()

    def _give_up(self, error: ClientError) -> None:
        self._over = error
        self._live.fail_all(error)
        self._set(None)

    def _watch(self, lost: Disconnected | None) -> None:
        if self._reconnecting.watch is not None and self._reconnecting.timeout_s > 0:
            self._reconnecting.watch(lost)

    async def _opened(self) -> ServerConnection:
        line = await self._dial(self._live.take, lambda: self._live.has_any)
        try:
            self.ready = await line.request(self._hello)
        except BaseException:
            await line.close()
            raise
        if client_id := self.ready.get("client_id"):
            self._hello["client_id"] = client_id
        return line

    async def _reopened(self, lost: Disconnected) -> ServerConnection:
        """Return a new connection. Raises Disconnected, or the Refused of a server that no longer admits this client."""
        if lost.final:
            raise lost
        try:
            async with asyncio.timeout(self._reconnecting.timeout_s):
                for delay_s in delays():
                    await asyncio.sleep(delay_s)
                    try:
                        return await self._opened()
                    except (NotConnected, OSError):
                        pass
                    except Disconnected as again:
                        if again.final:
                            raise
                    except Refused as refused:
                        if not refused.retryable:
                            raise
        except TimeoutError:
            pass
        raise lost

    async def _resume_all(self, line: ServerConnection) -> None:
        """Continue over a new connection. If it is lost, too, the next one tries again."""
        with suppress(Disconnected):
            for conversation_id, position in self._live.positions.items():
                try:
                    await self._resume(line, conversation_id, position)
                except Refused as refused:
                    self._live.fail_in(conversation_id, refused)

    async def _resume(self, line: ServerConnection, conversation_id: str, position: Position) -> None:
        """Have missed events sent; if the server has them no more, send messages again: it knows them by their ids.

        Then it sends each reply from its beginning. A reply that called tools, or that follows calls, fails instead.
        Raises Refused, Disconnected.
        """
        if not position.holed:
            place = {"epoch": position.epoch, "after_seq": position.seq}
            answer = await _accepted(line, _frame("resume", conversation_id=conversation_id, **place))
            if answer["type"] == "resumed":
                return
        for reply in self._live.of(conversation_id):
            if reply.sent is None or reply.done is not None:
                self._live.fail(reply, ClientError("a part of the reply was missed; the history has it"))
            else:
                await _accepted(line, reply.sent, ref=reply.sent["client_msg_id"])


def _frame(kind: str, **fields: Any) -> Frame:
    """Return a frame with the fields that are not None."""
    return {"type": kind} | {name: value for name, value in fields.items() if value is not None}


async def _accepted(line: ServerConnection, frame: Frame, *, ref: str | None = None) -> Frame:
    """Send a request, and again when the server says so: if many clients of one key reconnect, some have to wait.

    Raises Refused, Disconnected.
    """
    while True:
        try:
            return await line.request(frame, ref=ref)
        except Refused as refused:
            wait_s = (WAIT_MS if refused.retry_after_ms is None else refused.retry_after_ms) / 1000
            if refused.code != "rate_limited" or wait_s > LONGEST_WAIT_S:
                raise
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s * random.uniform(1, 1.5)):  # not all at once
                    raise await line.lost() from None


def delays(
    *, base_s: float = 0.25, cap_s: float = 15.0, chance: Callable[[], float] = random.random
) -> Iterator[float]:
    """Yield the seconds before each attempt, without end: between half and all of `min(cap, base * 2^n)`.

    So a thousand clients that lost the same server do not reconnect at the same moment. `chance` returns 0 to 1.
    """
    whole = base_s
    while True:
        yield whole / 2 + whole / 2 * chance()
        whole = min(cap_s, whole * 2)


TURN_FRAMES = frozenset({"status", "delta", "reasoning", "tool_call", "tool_state", "done"})


@dataclass(slots=True)
class Position:
    """A place in a conversation's journal, where a new connection resumes: an epoch and its last seen seq.

    `holed`: whether earlier events were missed.
    """

    epoch: str
    seq: int
    holed: bool = False

    def take(self, frame: Frame) -> None:
        """Note an event; frames without a seq are not events, and events may be repeated."""
        if (seq := frame.get("seq")) is None:
            return
        self.holed |= (frame.get("first_seq") or seq) > self.seq + 1
        self.seq = max(self.seq, seq)


class LiveReplies:
    """Passes each frame of the server to its reply."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sending: dict[str, Frame] = {}
        """Messages whose senders don't know their outcome, by client_msg_id."""
        self.begun: dict[str, Reply] = {}
        """Their replies: whole ones may come before their sender looks."""
        self._replies: dict[str, Reply] = {}  # by turn
        self.positions: dict[str, Position] = {}
        """Where to resume, by conversation: those with unfinished replies."""
        self.rejoined: dict[str, Reply | None] = {}
        """Unfinished replies of requested histories, by ref."""

    @property
    def has_any(self) -> bool:
        """Whether a reply is unfinished."""
        return bool(self._replies)

    def of(self, conversation_id: str) -> list[Reply]:
        """Return the unfinished replies of a conversation, oldest first."""
        return [r for r in self._replies.values() if r.accepted["conversation_id"] == conversation_id]

    def seen(self, conversation_id: str) -> Frame:
        """Return what was read of the reply that runs in a conversation, as fields of a message that interrupts it."""
        running = next((reply for reply in self.of(conversation_id) if reply.done is None), None)
        if running is None:
            return {}
        return {"seen_off": running.off + len(running.text), "seen_turn_id": running.turn_id}

    def take(self, frame: Frame) -> None:
        """Take a frame; frames of other clients' replies only count as seen."""
        kind, conversation_id = frame["type"], frame.get("conversation_id", "")
        if kind == "accepted":
            self._accept(frame)
        if kind == "history" and frame.get("ref") in self.rejoined:
            self.rejoined[frame["ref"]] = self._take_up(frame)
        if position := self.positions.get(conversation_id):
            position.take(frame)
        turn_id = frame["turn_id"] if kind in TURN_FRAMES else frame.get("turn_id")
        reply = self._replies.get(turn_id or "")
        if kind in TURN_FRAMES and reply is not None:
            reply.take(frame)
            if kind == "done" and frame["reason"] != "tools":
                self._forget(reply)

    def fail(self, reply: Reply, error: ClientError) -> None:
        """Fail a reply: it can't be read further."""
        reply.take(error)
        self._forget(reply)

    def fail_in(self, conversation_id: str, error: ClientError) -> None:
        """Fail all replies of a conversation."""
        for reply in self.of(conversation_id):
            self.fail(reply, error)

    def fail_all(self, error: ClientError) -> None:
        """Fail everything."""
        for reply in list(self._replies.values()):
            self.fail(reply, error)

    def _accept(self, frame: Frame) -> None:
        """Begin the reply to a message that is being sent, or one that follows the calls of a reply."""
        reply, sent = self._replies.get(frame["turn_id"]), self.sending.get(frame.get("ref", ""))
        if sent is not None:
            self.begun[frame["ref"]] = reply or self._add(Reply(self._server, frame, sent=sent))
        elif reply is None and (before := self._replies.get(frame.get("follows", ""))) is not None:
            before.take(self._add(Reply(self._server, frame, sent=None)))
            self._forget(before)

    def _take_up(self, page: Frame) -> Reply | None:
        """Take up the unfinished reply of a page, if any: from here on, its frames are passed to it.

        It runs, or its calls are open; queued messages may follow it.
        """
        message = next((message for message in reversed(page["messages"]) if _is_unfinished(message)), None)
        if message is None:
            return None
        if (known := self._replies.get(message["turn_id"])) is not None:
            return known
        accepted = {name: page[name] for name in ("conversation_id", "epoch", "seq")}
        accepted |= {"turn_id": message["turn_id"], "message_id": message["parent_id"]}
        reply = Reply(self._server, accepted, sent=None)
        reply.begin_with(message)
        return self._add(reply)

    def _add(self, reply: Reply) -> Reply:
        accepted = reply.accepted
        self._replies[reply.turn_id] = reply
        self.positions.setdefault(accepted["conversation_id"], Position(accepted["epoch"], accepted["seq"]))
        return reply

    def _forget(self, reply: Reply) -> None:
        del self._replies[reply.turn_id]
        conversation_id = reply.accepted["conversation_id"]
        if not self.of(conversation_id):
            self.positions.pop(conversation_id, None)


def _is_unfinished(message: Frame) -> bool:
    is_calling = any(call["state"] in ("waiting", "running") for call in message.get("calls", ()))
    return message["status"] == "running" or is_calling
