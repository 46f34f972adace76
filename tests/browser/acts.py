"""What tests have the peer do, in the words of the protocol: an exchange, a page of history, an answer to a page that is back."""

from __future__ import annotations

from typing import Any

from tests.browser.chat_page import ChatPage
from tests.browser.peer import Line, Peer


async def visit(chat: ChatPage, peer: Peer, **ready: Any) -> Line:
    """The page, opened, and its connection."""
    await chat.page.goto(peer.url)
    line = await peer.line(**ready)
    await chat.connected()
    return line


async def begin(chat: ChatPage, line: Line, *pieces: str, text: str = "Hello?") -> dict[str, Any]:
    """A message, accepted as turn `t` with number 1, and pieces of its reply from number 2 on."""
    await chat.type(text)
    send = await line.hear("send")
    await line.accept(send, turn="t", seq=1)
    off = 0
    for seq, piece in enumerate(pieces, start=2):
        await delta(line, send, piece, off=off, seq=seq)
        off += len(piece)
    if pieces:
        await chat.until_shown(pieces[-1].strip())
    return send


async def delta(
    line: Line, send: dict[str, Any], text: str, *, off: int, seq: int, first: int | None = None
) -> None:
    """One piece of the reply."""
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    await line.say("delta", text=text, off=off, seq=seq, first_seq=first or seq, tokens=1, **where)


async def tell_history(line: Line, *contents: str, seq: int, status: str = "complete") -> None:
    """Answers a request for history with an exchange of turn `t`."""
    asked = await line.hear("history")
    parts = zip((("user", "t-user"), ("assistant", "t-reply")), contents, strict=False)
    messages = [
        {
            "message_id": name,
            "turn_id": "t",
            "role": role,
            "content": content,
            "status": status,
            "created_at": 1,
        }
        for (role, name), content in parts
    ]
    page = {"epoch": "e", "seq": seq, "messages": messages, "has_more": False}
    await line.say("history", ref=asked["ref"], conversation_id=asked["conversation_id"], **page)


async def resume(line: Line, *, after: int, live: str | None = None) -> None:
    """Answers a request for what was missed: it follows."""
    asked = await line.hear("resume")
    assert (asked["epoch"], asked["after_seq"]) == ("e", after)
    where = {"conversation_id": asked["conversation_id"], "epoch": "e"}
    await line.say("resumed", ref=asked["ref"], replayed=0, live=live, **where)


async def wait(line: Line, kind: str, *, ms: int) -> None:
    """Refuses a request: it comes too early."""
    asked = await line.hear(kind)
    await line.say(
        "error", ref=asked["ref"], code="rate_limited", message="Later.", retryable=True, retry_after_ms=ms
    )


async def gap(line: Line) -> None:
    """Answers a request for what was missed: it is no more to be had."""
    asked = await line.hear("resume")
    where = {"conversation_id": asked["conversation_id"], "epoch": "e"}
    await line.say("gap", ref=asked["ref"], min_seq=9, **where)
    await line.say("snapshot", seq=9, turn_id=None, text="", **where)
