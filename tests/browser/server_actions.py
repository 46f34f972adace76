"""What tests have the peer do, in the words of the protocol: an exchange, a page of history, an answer to a page that is back."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer, PageConnection


async def visit(chat: ChatPage, peer: FakeServer, **ready: Any) -> PageConnection:
    """The page, opened, and its connection."""
    await chat.page.goto(peer.url)
    conn = await peer.conn(**ready)
    await chat.connected()
    return conn


async def begin(chat: ChatPage, conn: PageConnection, *pieces: str, text: str = "Hello?") -> dict[str, Any]:
    """A message, accepted as turn `t` with number 1, and pieces of its reply from number 2 on."""
    await chat.type(text)
    send = await conn.receive("send")
    await conn.accept(send, turn="t", seq=1)
    off = 0
    for seq, piece in enumerate(pieces, start=2):
        await delta(conn, send, piece, off=off, seq=seq)
        off += len(piece)
    if pieces:
        await chat.until_shown(pieces[-1].strip())
    return send


async def begun(
    chat: ChatPage, peer: FakeServer, *pieces: str, text: str = "Hello?"
) -> tuple[PageConnection, dict[str, Any]]:
    """The page, opened, with a message as `begin` makes it: its connection, and what it sent."""
    conn = await visit(chat, peer)
    return conn, await begin(chat, conn, *pieces, text=text)


async def exchange(
    chat: ChatPage,
    conn: PageConnection,
    reply: str,
    *,
    text: str = "Hello?",
    reason: str = "stop",
    **more: Any,
) -> dict[str, Any]:
    """A message, and the whole reply to it, which ends with number 3."""
    send = await begin(chat, conn, text=text)
    await delta(conn, send, reply, off=0, seq=2)
    await conn.finish(send, turn="t", seq=3, reason=reason, chars=len(reply), **more)
    await expect(chat.page.locator(".reply[aria-busy=false]")).to_have_count(1)
    return send


async def replied(
    chat: ChatPage, peer: FakeServer, reply: str, **how: Any
) -> tuple[PageConnection, dict[str, Any]]:
    """The page, opened, with one exchange: its connection, and what it sent."""
    conn = await visit(chat, peer)
    return conn, await exchange(chat, conn, reply, **how)


async def delta(
    conn: PageConnection, send: dict[str, Any], text: str, *, off: int, seq: int, turn: str = "t", **more: Any
) -> None:
    """One piece of the reply."""
    fields = {"turn_id": turn, "off": off, "seq": seq, "first_seq": seq, "tokens": 1} | more
    await conn.send_frame("delta", conversation_id=send["conversation_id"], text=text, **fields)


def history_call(state: str, **more: Any) -> dict[str, Any]:
    """A call as a reply in the history has it."""
    fields = {
        "call_id": "c",
        "index": 0,
        "name": "pay",
        "args": '{"sum": 5}',
        "args_sha256": "a" * 64,
        "off": 0,
    }
    return fields | {"where": "server", "needs": "approval", "state": state} | more


async def send_list(conn: PageConnection, *titles: str, **more: Any) -> None:
    """Answers the next request for the list; a conversation's id is its title in small letters."""
    entry: dict[str, Any] = {"updated_at": 1, "messages": 2}
    listed = [entry | {"conversation_id": title.lower(), "title": title} | more for title in titles]
    await conn.answer(
        await conn.receive("conversations"), "conversations", conversations=listed, has_more=False
    )


async def send_history(
    conn: PageConnection, *contents: str, seq: int, has_more: bool = False, **reply: Any
) -> None:
    """Answers a request for history with an exchange of turn `t`; `reply`: more fields of the reply."""
    requested = await conn.receive("history")
    one = {"turn_id": "t", "status": "complete", "created_at": 1, "sibling_count": 1, "sibling_index": 0}
    question = {"message_id": "t-user", "parent_id": None, "role": "user", "siblings": ["t-user"]}
    answer = {"message_id": "t-reply", "parent_id": "t-user", "role": "assistant"} | reply
    roles = zip((question, answer), contents, strict=False)
    messages = [one | role | {"content": content} for role, content in roles]
    page = {"epoch": "e", "seq": seq, "messages": messages, "has_more": has_more}
    await conn.answer(requested, "history", **page)


async def resume(conn: PageConnection, *, after: int, live: str | None = None) -> None:
    """Answers a request for what was missed: it follows."""
    requested = await conn.receive("resume")
    assert (requested["epoch"], requested["after_seq"]) == ("e", after)
    await conn.answer(requested, "resumed", replayed=0, live=live, epoch="e")


async def wait(conn: PageConnection, kind: str, *, ms: int) -> None:
    """Refuses a request: it comes too early."""
    requested = await conn.receive(kind)
    await conn.refuse(requested, "rate_limited", retryable=True, retry_after_ms=ms)


async def gap(conn: PageConnection) -> None:
    """Answers a request for what was missed: it is no more to be had."""
    requested = await conn.receive("resume")
    await conn.answer(requested, "gap", min_seq=9, epoch="e")
    where = {"conversation_id": requested["conversation_id"], "epoch": "e"}
    await conn.send_frame("snapshot", seq=9, turn_id=None, text="", **where)
