"""What a client asks of the server: a method for each frame of the protocol."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal

from midstream.interpreting import Interpretation
from midstream.live import LiveReplies
from midstream.reply import Reply

Frame = dict[str, Any]
LONGEST_PAGE = 200
"""Messages of a history page, at most: the protocol's."""


class Page(list[Frame]):
    """Rows of a list that goes on where `has_more`."""

    def __init__(self, rows: Iterable[Frame], *, has_more: bool) -> None:
        super().__init__(rows)
        self.has_more = has_more


class Found(list[Frame]):
    """What a search found; it goes on at `next`, None where all was looked at."""

    def __init__(self, hits: Iterable[Frame], *, next: str | None) -> None:  # noqa: A002 - the protocol's word
        super().__init__(hits)
        self.next = next


class Requests(ABC):
    """The frames of the protocol. How they reach the server, `Client` knows."""

    def __init__(self, live: LiveReplies) -> None:
        self._live = live
        self._hello: Frame = {}
        self.ready: Frame = {}
        """The server's answer to `hello`: its models, limits and tools."""

    @abstractmethod
    async def request(self, frame: Frame, *, ref: str | None = None) -> Frame:
        """Sends a frame and gives its answer. Raises Refused, Disconnected."""

    @abstractmethod
    async def tell(self, frame: Frame) -> None:
        """Sends a frame that has no answer."""

    @abstractmethod
    async def begin(self, fields: Frame) -> Reply:
        """Sends a message of any kind; gives its reply. Raises Refused, Disconnected."""

    async def send(self, content: str, *, conversation_id: str = "default", **fields: Any) -> Reply:
        """Sends a message; gives its reply once it is accepted. Further fields as in the protocol.

        A lost connection does not send it twice. Raises Refused, Disconnected.
        """
        return await self.begin(
            {"type": "send", "conversation_id": conversation_id, "content": content} | fields
        )

    async def edit(
        self, message_id: str, content: str, *, conversation_id: str = "default", **fields: Any
    ) -> Reply:
        """Says a user's message otherwise, on a branch beside the old one. Raises Refused, Disconnected."""
        frame = {"type": "edit", "conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(frame | {"content": content} | fields)

    async def regenerate(self, message_id: str, *, conversation_id: str = "default", **fields: Any) -> Reply:
        """Has another reply made beside the one with this id. Raises Refused, Disconnected."""
        frame = {"type": "regenerate", "conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(frame | fields)

    async def continue_reply(
        self, message_id: str, *, conversation_id: str = "default", **fields: Any
    ) -> Reply:
        """Has a reply go on that was stopped or cut; gives what comes behind its text. Raises Refused, Disconnected."""
        frame = {"type": "continue", "conversation_id": conversation_id, "message_id": message_id}
        return await self.begin(frame | fields)

    async def interpret(
        self, target: str, *, source: str = "auto", conversation_id: str = "default", **fields: Any
    ) -> Interpretation:
        """Begins a live translation into a language (`zh`), for clients that name the feature `interpret`.

        Further fields as in the protocol. Raises Refused, Disconnected.
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
        """Has a live translation go on that was stopped or cut; `source`: what the history has of it. Raises Refused, Disconnected."""
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
        """The newest messages of a conversation, or those `before` one, oldest first.

        With a `leaf` those of its branch, which is the active one from then on. Raises Refused (`not_found`, `busy`),
        Disconnected.
        """
        asked = {"type": "history", "conversation_id": conversation_id, "limit": limit}
        page = await self.request(asked | _given(before=before, leaf=leaf))
        return Page(page["messages"], has_more=page["has_more"])

    async def conversations(self, *, limit: int = 50, before: str | None = None) -> Page:
        """The owner's conversations, newest first, or those behind `before`, the last id of the page before.

        Raises Refused, Disconnected.
        """
        page = await self.request({"type": "conversations", "limit": limit} | _given(before=before))
        return Page(page["conversations"], has_more=page["has_more"])

    async def search(self, query: str, *, limit: int = 20, before: str | None = None) -> Found:
        """The conversations that have the words of a query, newest first, or those behind `before`, the `next` of the page before.

        A page may have fewer than `limit`, or none, and a `next` all the same. Raises Refused, Disconnected.
        """
        page = await self.request({"type": "search", "query": query, "limit": limit} | _given(before=before))
        return Found(page["hits"], next=page.get("next"))

    async def share(self, conversation_id: str) -> str:
        """Lets whoever has a link read what a conversation says now; gives the link's id, as in `/s/ID`.

        Asked again it shares what is said then. Raises Refused (`not_found`), Disconnected.
        """
        shared = await self.request({"type": "share", "conversation_id": conversation_id})
        return str(shared["share_id"])

    async def unshare(self, conversation_id: str) -> None:
        """Has the link of a conversation lead nowhere. Raises Refused, Disconnected."""
        await self.request({"type": "unshare", "conversation_id": conversation_id})

    async def rename(self, conversation_id: str, title: str) -> Frame:
        """Gives a conversation a title; gives its row. Raises Refused (`not_found`, `bad_params`), Disconnected."""
        asked = {"type": "rename", "conversation_id": conversation_id, "title": title}
        row: Frame = (await self.request(asked))["conversations"][0]
        return row

    async def follow(
        self, conversation_id: str = "default", *, epoch: str | None = None, after_seq: int = 0
    ) -> AsyncIterator[Frame]:
        """All frames of a conversation, whoever causes them, until it is deleted.

        First the newest `history`; with the `epoch` and the `seq` that were seen last, `resumed` and what was missed, or
        `gap` and `snapshot`. Lost connections are made up for in the same way. Raises Refused (`not_found`),
        Disconnected.
        """
        with self._live.following(conversation_id) as follower:
            asked: Frame = {"type": "history", "conversation_id": conversation_id}
            if epoch is not None:
                follower.begin(epoch, after_seq)
                asked |= {"type": "resume", "epoch": epoch, "after_seq": after_seq}
            await self.request(asked, ref=follower.ref)
            while True:
                frame = await follower.next()
                yield frame
                if frame["type"] == "deleted":
                    return

    async def rejoin(self, conversation_id: str = "default") -> Reply | None:
        """The reply that is being written in a conversation, or whose calls are open, with what came of it so far.

        None where there is none. Raises Refused (`not_found`), Disconnected.
        """
        behind = self.ready["limits"]["max_queued_turns"]  # messages that may stand behind that reply
        limit = min(1 + behind, LONGEST_PAGE)
        asked = {"type": "history", "conversation_id": conversation_id, "limit": limit}
        with self._live.rejoining() as ref:
            return self._live.rejoined(await self.request(asked, ref=ref))

    async def tool_result(
        self,
        call_id: str,
        *,
        content: str | None = None,
        error: str | None = None,
        conversation_id: str | None = None,
    ) -> Frame:
        """Brings what came of a call that a client runs: `content`, or else an `error`. Gives the `tool_ack` frame.

        Raises Refused (`conflict` where it was settled otherwise, `not_found`), Disconnected.
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
        """Allows or denies a call that asks for it: with the arguments that were looked at, or with `args` instead.

        A question of a running call is answered alike: `args_sha256` is its `sha256`, `args` the answer.

        Gives the `tool_ack` frame. Raises Refused (`conflict` where it was decided otherwise, `not_found`), Disconnected.
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
        """Stops what runs and waits in a conversation, or one turn of it. `Reply.cancel` keeps what was read here.

        `seen_off` says how much of the reply was seen; with `rollback` its exchange is taken out. Gives the `cancelled`
        frame. Raises Refused, Disconnected.
        """
        frame = {
            "type": "cancel",
            "conversation_id": conversation_id,
            "mode": "rollback" if rollback else "keep",
        }
        return await self.request(frame | _given(turn_id=turn_id, seen_off=seen_off))

    async def ack(self, conversation_id: str, seq: int) -> None:
        """Tells the server that all events up to `seq` have come. `Reply.ack` knows the seq of what was read."""
        await self.tell({"type": "ack", "conversation_id": conversation_id, "seq": seq})

    async def ping(self) -> float:
        """Seconds until the server has answered. Raises Disconnected."""
        begun = time.monotonic()
        await self.request({"type": "ping"})
        return time.monotonic() - begun

    async def delete(self, conversation_id: str) -> None:
        """Removes a conversation. Raises Refused (`not_found`), Disconnected."""
        await self.request({"type": "delete", "conversation_id": conversation_id})

    async def authenticate(self, token: str) -> None:
        """Shows a newer token of the same principal, now and at each later connection. Raises Refused, Disconnected."""
        await self.request({"type": "auth.refresh", "token": token})
        self._hello["token"] = token


def _given(**fields: Any) -> Frame:
    """The fields that say something."""
    return {name: value for name, value in fields.items() if value is not None}
