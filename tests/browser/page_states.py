"""States of the page that rules are held against: each brings an empty tab into one, with a peer on the other side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import begin, begun, delta, history_call, replied, send_history, visit
from tests.clients.environments import node_modules

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PHONE = {"width": 390, "height": 800}
REPLY = """# Sorting

Use `sorted`, see [the docs](https://docs.python.org/3/) and $O(n \\log n)$:

```python
# Sorts in place.
words: list[str] = sorted("b a".split(), key=len)  # 2 words
```

| name | average | note |
|------|--------:|------|
| Mergesort | $n \\log n$ | **stable** |

> A quote.

1. one
2. two
   - [x] nested

$$
\\frac{1}{2}
$$
"""

Scene = Callable[[ChatPage, FakeServer], Awaitable[None]]


def axe_script() -> Path:
    """The script of axe-core, which npm installs at the first run. Raises NotInstallable."""
    return node_modules(print, Path(__file__).with_name("axe.json")) / "axe-core" / "axe.min.js"


async def violations(chat: ChatPage) -> list[str]:
    """What axe has to say against the page as it is, a line for each element."""
    found: list[dict[str, Any]] = await chat.page.evaluate(
        "async (tags) => (await axe.run({ runOnly: tags })).violations", TAGS
    )
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]


async def old(chat: ChatPage, peer: FakeServer, **reply: Any) -> None:
    """A conversation of the history."""
    await chat.page.goto(f"{peer.url}/#/old")
    await send_history(await peer.conn(), "Hello?", REPLY, seq=5, has_more=True, **reply)
    await chat.until_shown("Mergesort")
    await expect(chat.page.locator(".prose math").first).to_be_attached()
    await expect(chat.page.locator(".hljs-comment").first).to_be_attached()


async def welcome(chat: ChatPage, peer: FakeServer) -> None:
    """An empty conversation."""
    await visit(chat, peer)
    await expect(chat.page.get_by_role("heading", name="Say something")).to_be_visible()


async def answered(chat: ChatPage, peer: FakeServer) -> None:
    """A reply with all that Markdown has, a thought that is open, and calls in all states."""
    states = [(state, {}) for state in ("waiting", "running", "denied")]
    states += [("done", {"content": "It rains."}), ("done", {"error": "It broke."})]
    calls = [
        history_call(state, call_id=f"c{n}", name=f"tool_{n}", **more)
        for n, (state, more) in enumerate(states)
    ]
    await old(chat, peer, reasoning="I think.\nSo.", calls=calls)
    await chat.page.locator(".thought summary").click()
    opened = "for (const fold of document.querySelectorAll('.call-result:not([hidden])')) fold.open = true;"
    await chat.page.evaluate(opened)


async def streaming(chat: ChatPage, peer: FakeServer) -> None:
    """A reply that is under way."""
    conn, send = await begun(chat, peer)
    await delta(conn, send, REPLY, off=0, seq=2)
    await chat.until_shown("Mergesort")


async def stopped(chat: ChatPage, peer: FakeServer) -> None:
    """A reply that was cut off."""
    await replied(chat, peer, REPLY, reason="cancelled")
    await expect(chat.badge()).to_have_text("Stopped")


async def branches(chat: ChatPage, peer: FakeServer) -> None:
    """A reply with other versions."""
    await old(chat, peer, siblings=["r1", "r2", "t-reply"], sibling_count=3, sibling_index=2)
    await expect(chat.page.get_by_label("Version 3 of 3")).to_be_visible()


async def editing(chat: ChatPage, peer: FakeServer) -> None:
    """A message in its box."""
    await old(chat, peer)
    await chat.questions.last.hover()
    await chat.page.get_by_role("button", name="Edit this message").click()


async def outage(chat: ChatPage, peer: FakeServer) -> None:
    """The service is gone, and a message waits for it."""
    conn = await visit(chat, peer)
    peer.closed = True
    await conn.drop()
    await expect(chat.page.locator("#connection[data-state=reconnecting]")).to_be_attached()
    await chat.type("Hello?")
    await expect(chat.questions).to_have_count(1)


async def refused(chat: ChatPage, peer: FakeServer) -> None:
    """A message that was not taken."""
    conn = await visit(chat, peer)
    await chat.type("Hello?")
    send = await conn.receive("send")
    await conn.refuse(send, "filtered")


async def deleting(chat: ChatPage, peer: FakeServer) -> None:
    """The question whether a conversation is to be deleted."""
    await old(chat, peer)
    await chat.page.get_by_role("button", name="Delete").first.click()
    await expect(chat.page.get_by_role("dialog")).to_be_visible()


async def key_prompt(chat: ChatPage, peer: FakeServer) -> None:
    """The prompt for a key."""
    await chat.page.context.route("**/v1/tickets", lambda route: route.fulfill(status=404))
    await chat.page.goto(peer.url)
    conn = await peer.stranger()
    await conn.receive("hello")
    await conn.send_frame("error", code="unauthenticated", message="There is no such key.", retryable=False)
    await conn.drop(4401, "unauthenticated")
    await expect(chat.page.get_by_role("dialog")).to_be_visible()


async def drawer(chat: ChatPage, peer: FakeServer) -> None:
    """The list of conversations on a phone."""
    await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    await visit(chat, peer)
    await chat.page.get_by_role("button", name="Show your conversations").click()


async def phone(chat: ChatPage, peer: FakeServer) -> None:
    """A reply on a phone."""
    await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    await answered(chat, peer)


async def settings(chat: ChatPage, peer: FakeServer) -> None:
    """The settings, of which some are choices between models."""
    model = {"context_tokens": 4096, "features": ["reasoning"]}
    await visit(chat, peer, models=[{"name": "scripted"} | model, {"name": "other"} | model])
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await expect(chat.page.get_by_role("dialog")).to_be_visible()


async def menu(chat: ChatPage, peer: FakeServer) -> None:
    """What can be done with a conversation."""
    await stopped(chat, peer)
    await chat.page.get_by_role("button", name="More about this conversation").click()
    await expect(chat.page.get_by_role("button", name="Rename", exact=True)).to_be_visible()


async def sharing(chat: ChatPage, peer: FakeServer) -> None:
    """The link to a conversation."""
    conn = await visit(chat, peer, features=["share"])
    await begin(chat, conn, "one")
    await chat.page.get_by_role("button", name="More about this conversation").click()
    await chat.page.get_by_role("button", name="Share", exact=True).click()
    await conn.answer(await conn.receive("share"), "shared", share_id="s" * 22)
    await expect(chat.page.get_by_role("dialog")).to_be_visible()


async def found(chat: ChatPage, peer: FakeServer) -> None:
    """What was found in the place of the list."""
    conn = await visit(chat, peer)
    await chat.page.get_by_label("Search your conversations").fill("tree")
    hit = {"conversation_id": "forest", "title": "About trees", "messages": 2, "updated_at": 1}
    place = {"message_id": "m", "role": "user", "snippet": "Which tree?", "off": 6, "len": 4}
    await conn.answer(await conn.receive("search"), "found", hits=[hit | place])
    await expect(chat.page.locator("#hits mark")).to_have_text("tree")


async def translating(chat: ChatPage, peer: FakeServer) -> None:
    """A translation that grows beside its source."""
    models = [{"name": "scripted", "features": ["continue"]}]
    conn = await visit(chat, peer, features=["interpret"], models=models)
    await chat.page.get_by_role("button", name="Live translation").click()
    await expect(chat.page.get_by_label("Into")).to_be_visible()
    await chat.box.press_sequentially("Good morning. ")
    requested = await conn.receive("interpret.start")
    await conn.accept(requested, turn="t", seq=1, interprets={"source": "en", "target": "zh"})
    grown = await conn.receive("source")
    where = {"conversation_id": requested["conversation_id"], "turn_id": "t"}
    await conn.send_frame("source", seq=2, off=0, text=grown["text"], **where)
    await conn.answer(grown, "source_ack", turn_id="t", chars=14, final=False, already=False)
    await delta(conn, requested, "早上好。", off=0, seq=3, src_off=13)
    await expect(chat.page.locator(".pairs .target")).to_have_text("早上好。")


SCENES: tuple[Scene, ...] = (
    welcome,
    answered,
    streaming,
    stopped,
    branches,
    editing,
    outage,
    refused,
    deleting,
    key_prompt,
    settings,
    menu,
    sharing,
    found,
    translating,
    drawer,
    phone,
)
