"""A reply that ends while nobody looks: a mark in the title, and a notification where these were asked for."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import begin, begun, delta, visit

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
NOTIFICATIONS = """
  window.told = [];
  Object.defineProperty(navigator, "serviceWorker", { value: undefined }); // the page shows them itself
  window.Notification = class {
    static permission = "default";
    static answer = "granted";
    static requestPermission = async () => (Notification.permission = Notification.answer);
    constructor(title, options) { window.told.push([title, options.body]); window.last = this; }
    close() { window.shut = true; }
  };
"""
TITLE = "Hello? · Midstream"


@pytest.fixture(autouse=True)
def module_by_module(peer: FakeServer) -> None:
    """The switch that tests turn is the page's own."""
    peer.plain = True


async def end(conn: PageConnection, send: dict[str, Any]) -> None:
    """The end of a reply of which one piece came."""
    await delta(conn, send, "two", off=3, seq=3)
    await conn.finish(send, turn="t", seq=4, reason="stop", chars=6)


async def switch(chat: ChatPage, body: str) -> Any:
    """Does something with the switch of notifications."""
    path = "/static/ui/settings/notifications.js"
    return await chat.client(f"async () => {{ const {{ notifications }} = await import('{path}'); {body} }}")


async def test_nobody_is_notified_who_did_not_ask_for_it(chat: ChatPage, peer: FakeServer) -> None:
    """The title gets a mark until somebody looks; but not for a reply that ended before the reader's eyes."""
    await chat.page.add_init_script(NOTIFICATIONS + "Notification.permission = 'granted';")
    conn, send = await begun(chat, peer, "one")
    await end(conn, send)
    await chat.ended()
    await chat.client(HIDE, True)
    await expect(chat.page).to_have_title(TITLE)
    await chat.type("Hello?")
    send = await conn.receive("send")
    await conn.accept(send, turn="u", seq=5)
    await conn.finish(send, turn="u", seq=6, reason="stop", chars=0)
    await expect(chat.page).to_have_title(f"● {TITLE}")
    assert await chat.client("window.told") == []
    assert await switch(chat, "return notifications.enabled;") is False
    await chat.client(HIDE, False)
    await expect(chat.page).to_have_title(TITLE)


async def test_who_asked_for_notifications_gets_them_after_a_reload_too_until_they_are_switched_off(
    chat: ChatPage, peer: FakeServer
) -> None:
    await chat.page.add_init_script(NOTIFICATIONS)
    await visit(chat, peer)
    assert await switch(chat, "return await notifications.enable();") is True
    peer.histories[chat.page.url.partition("#/")[2]] = []
    await chat.page.reload()
    conn = await peer.conn()
    await chat.client("Notification.permission = 'granted'")
    assert await switch(chat, "return notifications.enabled;") is True
    await chat.connected()
    send = await begin(chat, conn, "one")
    await chat.client(HIDE, True)
    await end(conn, send)
    await expect(chat.page).to_have_title(f"● {TITLE}")
    assert await chat.client("window.told") == [["Reply finished", ""]]
    await chat.client("location.hash = '#/elsewhere'")
    await chat.client("window.last.onclick()")
    await expect(chat.questions).to_have_text(["Hello?"])
    assert await chat.client("window.shut")
    await switch(chat, "notifications.disable();")
    assert await switch(chat, "return notifications.enabled;") is False
    await chat.client("Notification.answer = 'denied'")
    assert await switch(chat, "return await notifications.enable();") is False
    assert await switch(chat, "return notifications.enabled;") is False


WORKER = "navigator.serviceWorker.getRegistration('/static/notification-worker.js')"
SHOWN = f"async () => (await (await {WORKER}).getNotifications()).map((one) => [one.title, one.tag])"
CHOSEN = """async () => {
  const [notification] = await self.registration.getNotifications();
  self.dispatchEvent(new NotificationEvent("notificationclick", { notification }));
}"""


async def test_a_worker_shows_notifications_where_pages_may_not(
    whole_chromium: Browser, peer: FakeServer
) -> None:
    """As on Chrome for Android; choosing one leads to its conversation."""
    context = await whole_chromium.new_context(permissions=["notifications"])
    chat = ChatPage(await context.new_page())
    throws = "window.Notification = class extends Notification { constructor() { throw new TypeError('Illegal'); } };"
    await chat.page.add_init_script(throws)
    conn = await visit(chat, peer)
    async with context.expect_event("serviceworker") as coming:
        assert await switch(chat, "return await notifications.enable();") is True
    worker = await coming.value
    await chat.page.wait_for_function(f"async () => (await {WORKER})?.active?.state === 'activated'")
    send = await begin(chat, conn, "one")
    await chat.client(HIDE, True)
    await end(conn, send)
    await chat.client(
        f"async () => {{ while ((await ({SHOWN})()).length === 0) await new Promise(requestAnimationFrame); }}"
    )
    assert await chat.client(SHOWN) == [["Reply finished", send["conversation_id"]]]
    await chat.client("location.hash = '#/elsewhere'")
    await worker.evaluate(CHOSEN)
    await expect(chat.questions).to_have_text(["Hello?"])
    assert await chat.client(SHOWN) == []
