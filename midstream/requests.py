"""The client's requests: a method for each frame of the protocol."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal

from midstream.interpretation import Interpretation
from midstream.live import LiveReplies
from midstream.reply import Reply

Frame = dict[str, Any]
LONGEST_PAGE = 200
"""Most messages of a history page: the protocol's bound."""


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


class Requests(ABC):
    """The frames of the protocol. `Client` sends them."""

    def __init__(self, live: LiveReplies) -> None:
        self._live = live
        self._hello: Frame = {}
        self.ready: Frame = {}
        """The server's `ready` frame: its models, limits and tools."""

    @abstractmethod
    async def request(self, frame: Frame, *, ref: str | None = None) -> Frame:
        """Send a frame and return its answer. Raises Refused, Disconnected."""

    @abstractmethod
    async def tell(self, frame: Frame) -> None:
        """Send a frame that has no answer."""

    @abstractmethod
    async def begin(self, fields: Frame) -> Reply:
        """Send a message of any kind; return its reply. Raises Refused, Disconnected."""

    async def send(self, content: str, *, conversation_id: str = "default", **fields: Any) -> Reply:
        """Send a message; return its reply once it is accepted. Further fields are the protocol's.

        With `on_busy="interrupt"` a running reply ends at what was read of it. A lost connection doubles no message. Raises
        Refused, Disconnected.
        """
        return await self.begin(
            {"type": "send", "conversation_id": conversation_id, "content": content} | fields
        )

    async def edit(
        self, message_id: str, content: str, *, conversation_id: str = "default", **fields: Any
    ) -> Reply:
        """Edit a user's message: the new one begins a branch beside the old one. Raises Refused, Disconnected."""
        frame = {"type": "edit", "conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(frame | {"content": content} | fields)

    async def regenerate(self, message_id: str, *, conversation_id: str = "default", **fields: Any) -> Reply:
        """Generate another reply beside the one with this id. Raises Refused, Disconnected."""
        frame = {"type": "regenerate", "conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(frame | fields)

    async def continue_reply(
        self, message_id: str, *, conversation_id: str = "default", **fields: Any
    ) -> Reply:
        """Continue a reply that was stopped or cut; return the rest. Raises Refused, Disconnected."""
        frame = {"type": "continue", "conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(frame | fields)

    async def interpret(
        self, target: str, *, source: str = "auto", conversation_id: str = "default", **fields: Any
    ) -> Interpretation:
        """Begin a live translation into a language (`zh`), for clients with the feature `interpret`.

        Further fields are the protocol's. Raises Refused, Disconnected.
        """
        frame = {
            "type": "interpret.start",
            "conversation_id": conversation_id,
            "source": source,
            "target": target,
        }
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
        """Return the newest messages of a conversation, or those `before` one, oldest first.

        A `leaf` activates its branch. Raises Refused (`not_found`, `busy`), Disconnected.
        """
        query = {"type": "history", "conversation_id": conversation_id, "limit": limit}
        page = await self.request(query | _given(before=before, leaf=leaf))
        return Page(page["messages"], has_more=page["has_more"])

    async def conversations(self, *, limit: int = 50, before: str | None = None) -> Page:
        """Return the owner's conversations, newest first, or those after `before`, the last id of the previous page.

        Raises Refused, Disconnected.
        """
        page = await self.request({"type": "conversations", "limit": limit} | _given(before=before))
        return Page(page["conversations"], has_more=page["has_more"])

    async def search(self, query: str, *, limit: int = 20, before: str | None = None) -> Found:
        """Return the conversations with the words of a query, newest first, or those after `before`, the `next` of the previous page.

        A page may have fewer than `limit`, or none, and still a `next`. Raises Refused, Disconnected.
        """
        page = await self.request({"type": "search", "query": query, "limit": limit} | _given(before=before))
        return Found(page["hits"], next=page.get("next"))

    async def share(self, conversation_id: str) -> str:
        """Share the current branch with everybody who has the link; return the link's id, as in `/s/ID`.

        Calling it again updates what the link shows. Raises Refused (`not_found`), Disconnected.
        """
        shared = await self.request({"type": "share", "conversation_id": conversation_id})
        return str(shared["share_id"])

    async def unshare(self, conversation_id: str) -> None:
        """Revoke the link of a conversation. Raises Refused, Disconnected."""
        await self.request({"type": "unshare", "conversation_id": conversation_id})

    async def rename(self, conversation_id: str, title: str) -> Frame:
        """Change a conversation's title; return its row. Raises Refused (`not_found`, `bad_params`), Disconnected."""
        query = {"type": "rename", "conversation_id": conversation_id, "title": title}
        row: Frame = (await self.request(query))["conversations"][0]
        return row

    async def follow(
        self, conversation_id: str = "default", *, epoch: str | None = None, after_seq: int = 0
    ) -> AsyncIterator[Frame]:
        """Yield all frames of a conversation, whoever causes them, until it is deleted.

        It begins with the newest `history`. With the last seen `epoch` and `seq` it begins with `resumed` and the missed
        events, or `gap` and `snapshot`. Lost connections are resumed in the same way. Raises Refused (`not_found`),
        Disconnected.
        """
        with self._live.following(conversation_id) as follower:
            query: Frame = {"type": "history", "conversation_id": conversation_id}
            if epoch is not None:
                follower.begin(epoch, after_seq)
                query |= {"type": "resume", "epoch": epoch, "after_seq": after_seq}
            await self.request(query, ref=follower.ref)
            while True:
                frame = await follower.next()
                yield frame
                if frame["type"] == "deleted":
                    return

    async def rejoin(self, conversation_id: str = "default") -> Reply | None:
        """Return the reply of a conversation that runs, or whose calls are open, with what came of it so far.

        None if there is none. Raises Refused (`not_found`), Disconnected.
        """
        queued = self.ready["limits"]["max_queued_turns"]  # queued messages may follow that reply
        limit = min(1 + queued, LONGEST_PAGE)
        query = {"type": "history", "conversation_id": conversation_id, "limit": limit}
        with self._live.rejoining() as ref:
            return self._live.rejoined(await self.request(query, ref=ref))

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
        given = _given(content=content, error=error, conversation_id=conversation_id)
        return await self.request({"type": "tool_result", "call_id": call_id} | given)

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

        It also answers a question of a running call: `args_sha256` is its `sha256`, `args` the answer.

        Return the `tool_ack` frame. Raises Refused (`conflict` if it was decided otherwise, `not_found`), Disconnected.
        """
        frame = {
            "type": "tool_decision",
            "call_id": call_id,
            "decision": decision,
            "args_sha256": args_sha256,
        }
        return await self.request(frame | _given(args=args, conversation_id=conversation_id))

    async def cancel(
        self,
        conversation_id: str = "default",
        *,
        turn_id: str | None = None,
        rollback: bool = False,
        seen_off: int | None = None,
    ) -> Frame:
        """Stop all turns of a conversation, or one of them. `Reply.cancel` keeps what was read here.

        `seen_off` says how much of the reply was seen; `rollback` removes its exchange. Return the `cancelled` frame. Raises
        Refused, Disconnected.
        """
        frame = {
            "type": "cancel",
            "conversation_id": conversation_id,
            "mode": "rollback" if rollback else "keep",
        }
        return await self.request(frame | _given(turn_id=turn_id, seen_off=seen_off))

    async def ack(self, conversation_id: str, seq: int) -> None:
        """Acknowledge all events up to `seq`. `Reply.ack` knows the seq of what was read."""
        await self.tell({"type": "ack", "conversation_id": conversation_id, "seq": seq})

    async def ping(self) -> float:
        """Return the seconds until the server has answered. Raises Disconnected."""
        begun = time.monotonic()
        await self.request({"type": "ping"})
        return time.monotonic() - begun

    async def delete(self, conversation_id: str) -> None:
        """Delete a conversation. Raises Refused (`not_found`), Disconnected."""
        await self.request({"type": "delete", "conversation_id": conversation_id})

    async def authenticate(self, token: str) -> None:
        """Use a newer token of the same principal, now and for later connections. Raises Refused, Disconnected."""
        await self.request({"type": "auth.refresh", "token": token})
        self._hello["token"] = token


def _given(**fields: Any) -> Frame:
    """Return the fields that are set."""
    return {name: value for name, value in fields.items() if value is not None}
