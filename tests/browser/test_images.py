"""Images on the page: attached where the model takes them, shown before they are sent, in the conversation, and on every device."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Request, Route, expect

from app.keys import add_key
from connections.images import MAX_BYTES, MAX_IMAGES
from engine.scripted import FEATURES, ScriptedEngine
from tests.app.in_process_service import InProcessService
from tests.app.in_process_service import serving as in_process
from tests.app.realtime_client import create, session
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.test_drafts import go_to
from tests.sample_images import PNG, drawn, png
from tests.server_process import ServerProcess

WIDE = drawn("PNG", 40, 30)
TALL = drawn("JPEG", 30, 60)
ALT = "Attached image, 40 \N{MULTIPLICATION SIGN} 30"
PASTE = """async (data) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  await navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) })]);
}"""
DROP = """(data) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const dropped = new DataTransfer();
  dropped.items.add(new File([bytes], "dropped.jpg", { type: "image/jpeg" }));
  return dropped;
}"""
UPLOAD = re.compile(r"/v1/attachments\?")
LOADED = "(image) => image.complete && image.naturalWidth > 0"


def file(name: str, data: bytes, kind: str = "image/png") -> Any:
    return {"name": name, "mimeType": kind, "buffer": data}


@pytest_asyncio.fixture(loop_scope="session")
async def service(tmp_path: Path) -> AsyncIterator[InProcessService]:
    engine = ScriptedEngine(features=(*FEATURES, "images"), reply="A square.")
    async with in_process(tmp_path, engine) as running:
        yield running


class Pictures:
    """Where images are on a page."""

    def __init__(self, chat: ChatPage) -> None:
        self.chat = chat
        self.chooser = chat.page.locator("#attach-files")
        self.chips = chat.page.locator("#attachments li")
        self.shown = chat.page.locator(".picture img")
        self.notices = chat.page.locator("#notices")

    async def attach(self, *files: Any) -> None:
        await self.chooser.set_input_files([*files])

    async def attached(self, count: int) -> None:
        """Waits until so many are attached, and uploaded."""
        await expect(self.chips).to_have_count(count)
        await expect(self.chat.page.locator("#attachments [aria-busy]")).to_have_count(0)

    async def loaded(self, image: Locator) -> None:
        """Waits until an image is to be seen."""
        await expect(image).to_be_visible()
        await self.chat.page.wait_for_function(LOADED, arg=await image.element_handle())


async def test_an_image_is_shown_in_its_draft_in_the_conversation_once_edited_and_on_another_device(
    service: InProcessService, chat: ChatPage, chromium: Browser, complaints: Complaints
) -> None:
    pictures = Pictures(chat)
    await chat.open(service.url)
    await expect(chat.page.get_by_role("button", name="Attach texts or images")).to_be_visible()
    await pictures.attach(file("garden.png", WIDE))
    await pictures.attached(1)
    await expect(chat.page.locator("#announcer")).to_have_text("“garden.png” is attached.")
    for _ in ("at first", "after a reload"):
        await pictures.loaded(pictures.chips.get_by_role("img", name="garden.png"))
        await expect(chat.page.get_by_role("button", name="Send")).to_be_disabled()
        await expect(chat.box).to_have_attribute("placeholder", "Write something about the image")
        await chat.reload()
    await chat.ask("What is this?")
    await expect(pictures.chips).to_have_count(0)
    await pictures.loaded(chat.page.get_by_role("img", name=ALT))
    await chat.edit("And what is that?")
    await expect(chat.questions).to_have_text(["And what is that?"])
    await chat.ended()
    await chat.page.reload()
    await pictures.loaded(chat.page.get_by_role("img", name=ALT))
    assert [len(request.messages[0].images) for request in service.engine.requests] == [1, 1]
    elsewhere = await chromium.new_context(storage_state=await chat.page.context.storage_state())
    complaints.watch(elsewhere)
    other = ChatPage(await elsewhere.new_page())
    await other.open(service.url)
    await expect(other.questions).to_have_text(["And what is that?"])
    await Pictures(other).loaded(other.page.get_by_role("img", name=ALT))
    await elsewhere.close()


async def test_images_are_pasted_and_dropped_and_what_was_removed_is_not_sent(
    service: InProcessService, chat: ChatPage
) -> None:
    pictures = Pictures(chat)
    await chat.open(service.url)
    await chat.client(PASTE, b64encode(WIDE).decode())
    await chat.box.focus()
    await chat.page.keyboard.press("ControlOrMeta+v")
    await pictures.attached(1)
    dropped = await chat.page.evaluate_handle(DROP, b64encode(TALL).decode())
    await chat.page.dispatch_event("#composer", "drop", {"dataTransfer": dropped})
    await pictures.attached(2)
    await pictures.attach(file("one.png", WIDE))
    await pictures.attached(3)
    await chat.page.get_by_role("button", name="Remove “one.png”").focus()
    await chat.page.keyboard.press("Enter")
    await pictures.attached(2)
    await expect(chat.box).to_be_focused()
    await chat.ask("And these?")
    names = [
        "Attached image 1 of 2, 40 \N{MULTIPLICATION SIGN} 30",
        "Attached image 2 of 2, 30 \N{MULTIPLICATION SIGN} 60",
    ]
    for name in names:
        await pictures.loaded(chat.page.get_by_role("img", name=name))
    (message,) = service.engine.requests[0].messages
    assert [(image.width, image.height) for image in message.images] == [(40, 30), (30, 60)]


async def test_what_is_not_taken_is_refused_in_plain_words(
    service: InProcessService, chat: ChatPage, complaints: Complaints
) -> None:
    complaints.expected = ["Failed to load resource"]
    pictures = Pictures(chat)
    await chat.open(service.url)
    for wrong, words in (
        (file("large.png", PNG.data + bytes(MAX_BYTES)), "an image has up to 3 MB"),
        (file("new.heic", b"heic", "image/heic"), "images are PNG, JPEG, WebP or GIF"),
        (file("broken.png", PNG.data[:20]), "can't be read as an image"),
        (file("long.png", png(9000, 1)), "it is damaged, or has too many pixels"),
    ):
        await pictures.attach(wrong)
        await expect(pictures.notices).to_contain_text(words)
        await expect(pictures.chips).to_have_count(0)
    await pictures.attach(*[file(f"{number}.png", WIDE) for number in range(9)])
    await expect(pictures.notices).to_contain_text("A message can have up to 8 images.")
    await pictures.attached(8)


async def test_a_model_that_takes_no_images_is_shown_none(chat: ChatPage, server: ServerProcess) -> None:
    pictures = Pictures(chat)
    await chat.open(server.url)
    await expect(chat.page.get_by_role("button", name="Attach text files")).to_be_visible()
    await pictures.attach(file("garden.png", WIDE))
    await expect(pictures.notices).to_contain_text("this model doesn't support images")
    await expect(pictures.chips).to_have_count(0)


class Uploads:
    """Holds the page's uploads back until they may go on."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._may_go_on = asyncio.Event()
        self.fail = False

    async def hold(self) -> None:
        """Begins to."""
        await self._page.route(UPLOAD, self._on)

    async def end(self, count: int = 1) -> None:
        """Lets them go on, and waits until so many have been answered."""
        event = "requestfailed" if self.fail else "requestfinished"
        left = iter(range(count)[::-1])

        def is_last(request: Request) -> bool:
            return UPLOAD.search(request.url) is not None and next(left) == 0

        async with self._page.expect_event(event, is_last):
            self._may_go_on.set()

    async def _on(self, route: Route) -> None:
        await self._may_go_on.wait()
        await (route.abort() if self.fail else route.continue_())


@pytest_asyncio.fixture(loop_scope="session")
async def uploads(service: InProcessService, chat: ChatPage) -> Uploads:
    """The page is open at a conversation, and what is uploaded there waits."""
    await chat.open(f"{service.url}/#/one")
    held = Uploads(chat.page)
    await held.hold()
    return held


async def test_an_upload_that_ends_in_another_conversation_is_in_the_draft_where_it_was_begun(
    service: InProcessService, chat: ChatPage, uploads: Uploads
) -> None:
    """Who comes back before that can take it out."""
    pictures = Pictures(chat)
    await pictures.attach(file("garden.png", WIDE), file("tree.png", TALL))
    await expect(pictures.chips).to_have_count(2)
    await go_to(chat, "two")
    await expect(pictures.chips).to_have_count(0)
    await go_to(chat, "one")
    await expect(chat.page.locator("#attachments [aria-busy]")).to_have_count(2)
    await chat.page.get_by_role("button", name="Remove “tree.png”").click()
    await go_to(chat, "two")
    await expect(pictures.chips).to_have_count(0)
    await uploads.end(2)
    await go_to(chat, "one")
    await pictures.attached(1)
    await chat.reload()
    await pictures.attached(1)
    await expect(pictures.chips.get_by_role("img", name="garden.png")).to_be_visible()
    await chat.ask("What is this?")
    (message,) = service.engine.requests[0].messages
    assert [(image.width, image.height) for image in message.images] == [(40, 30)]
    await go_to(chat, "two")
    await expect(pictures.chips).to_have_count(0)


async def test_an_upload_that_fails_in_another_conversation_is_told(
    uploads: Uploads, chat: ChatPage, complaints: Complaints
) -> None:
    complaints.expected = ["Failed to load resource"]
    uploads.fail = True
    pictures = Pictures(chat)
    await pictures.attach(file("garden.png", WIDE))
    await expect(pictures.chips).to_have_count(1)
    await go_to(chat, "two")
    await uploads.end()
    await expect(pictures.notices).not_to_be_empty()
    await go_to(chat, "one")
    await expect(pictures.chips).to_have_count(0)


async def test_a_message_of_another_door_with_more_images_than_the_page_sends_is_edited(
    service: InProcessService, chat: ChatPage
) -> None:
    """As many as any endpoint takes; all stay."""
    await chat.open(service.url)
    client_id = await chat.client("localStorage.getItem('midstream.client_id')")
    images = [drawn("PNG", 8, height) for height in range(1, MAX_IMAGES + 1)]
    urls = [f"data:image/png;base64,{b64encode(image).decode()}" for image in images]
    content = [{"type": "input_image", "image_url": url} for url in urls]
    words = {"type": "input_text", "text": "What are these?"}
    async with session(service, client_id=client_id) as socket:
        await create(socket, "", item={"content": [words, *content]})
        await socket.send(type="response.create")
        await socket.next("response.done")
        place = socket.ready["conversation_id"]
    await go_to(chat, place)
    await expect(chat.page.locator(".picture")).to_have_count(MAX_IMAGES)
    await chat.edit("And what are those?")
    await expect(chat.questions).to_have_text(["And what are those?"])
    await chat.ended()
    await expect(chat.text).to_have_text("A square.")
    await expect(chat.page.locator(".picture")).to_have_count(MAX_IMAGES)
    assert [len(request.messages[0].images) for request in service.engine.requests] == [MAX_IMAGES] * 2


async def test_a_message_whose_image_has_expired_can_go_without_it(
    service: InProcessService, chat: ChatPage
) -> None:
    pictures = Pictures(chat)
    await chat.open(service.url)
    await pictures.attach(file("garden.png", WIDE))
    await pictures.attached(1)
    store = service.service._sessions.images._client
    (uploads,) = [name async for name in store.scan_iter("ms:upload:*")]
    await store.delete(uploads)
    await chat.box.fill("What is this?")
    await chat.page.keyboard.press("Enter")
    await chat.page.get_by_role("button", name="Send without images").click()
    await expect(chat.text).to_have_text("A square.")
    (message,) = service.engine.requests[0].messages
    assert (message.content, message.images) == ("What is this?", ())


async def test_an_image_that_does_not_come_can_be_asked_for_again(
    service: InProcessService, chat: ChatPage, complaints: Complaints
) -> None:
    complaints.expected = ["Failed to load resource"]
    pictures = Pictures(chat)
    await chat.open(service.url)
    await pictures.attach(file("garden.png", WIDE))
    await pictures.attached(1)
    await chat.ask("What is this?")
    await chat.page.route("**/v1/attachments/**", lambda route: route.abort())
    await chat.page.reload()
    await expect(chat.page.locator(".picture")).to_contain_text(f"{ALT}: This image could not be loaded.")
    await chat.page.unroute("**/v1/attachments/**")
    await chat.page.get_by_role("button", name="Try again").click()
    await pictures.loaded(chat.page.get_by_role("img", name=ALT))


async def test_who_reads_a_shared_conversation_is_shown_its_words_alone(
    service: InProcessService, chat: ChatPage
) -> None:
    known = {"client_id": "ann"}
    async with httpx.AsyncClient(base_url=service.url) as client:
        sent = await client.post("/v1/attachments", content=WIDE, params=known)
    async with service.socket(known) as socket:
        frame = {"client_msg_id": "m", "conversation_id": "c", "content": "What is this?"}
        await socket.send(type="send", attachments=[sent.json()["id"]], **frame)
        await socket.until("done")
        await socket.send(type="share", conversation_id="c")
        share = (await socket.next("shared"))["share_id"]
    await chat.page.goto(f"{service.url}/s/{share}")
    await expect(chat.questions).to_have_text(["What is this?"])
    await expect(chat.text).to_have_text("A square.")
    await expect(chat.page.locator(".picture")).to_have_count(0)


async def test_images_of_a_person_with_a_key_are_shown_with_it(
    chat: ChatPage, tmp_path: Path, complaints: Complaints
) -> None:
    complaints.expected = ["Failed to load resource"]
    key = add_key(tmp_path / "keys", "ann")
    engine = ScriptedEngine(features=(*FEATURES, "images"), reply="A square.")
    async with in_process(tmp_path / "data", engine, api_keys=str(tmp_path / "keys")) as running:
        pictures = Pictures(chat)
        await chat.page.goto(running.url)
        await chat.page.get_by_label("Key", exact=True).fill(key)
        await chat.page.keyboard.press("Enter")
        await chat.connected()
        await pictures.attach(file("garden.png", WIDE))
        await pictures.attached(1)
        await chat.ask("What is this?")
        await chat.page.reload()
        await pictures.loaded(chat.page.get_by_role("img", name=ALT))
        await chat.page.close()
