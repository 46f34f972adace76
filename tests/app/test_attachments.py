"""Images of conversations: uploaded, sent, repeated in later prompts, read from the history, deleted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from connections.images import MAX_BYTES, MAX_IMAGES
from engine.scripted import FEATURES, ScriptedEngine
from engine.vision.image import NOT_SEEN
from sessions.limits import bounds, shares
from sessions.store import images
from sessions.store.client import KEEP_IMAGE, run_script
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.sample_images import JPEG, PNG, chunk, png
from tests.sessions.store.storage_quotas import MIB

CLIENT = {"client_id": "ann"}


def vision_engine(**more: Any) -> ScriptedEngine:
    return ScriptedEngine(features=(*FEATURES, "images"), **more)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path, vision_engine()) as running:
        yield running


async def upload(running: InProcessService, data: bytes, **params: str) -> httpx.Response:
    return await running.request("POST", "/v1/attachments", content=data, params=CLIENT | params)


async def uploaded_id(running: InProcessService, data: bytes) -> str:
    answered = await upload(running, data)
    assert answered.status_code == 200, answered.text
    return str(answered.json()["id"])


async def read(
    running: InProcessService,
    attachment: str,
    place: str = "c",
    headers: dict[str, str] | None = None,
    **params: str,
) -> httpx.Response:
    path = f"/v1/attachments/{place}/{attachment}"
    return await running.request("GET", path, params=CLIENT | params, headers=headers or {})


async def send_and_wait(socket: Socket, content: str, *attachments: str, **more: Any) -> list[dict[str, Any]]:
    name = f"m{hashlib.sha256(f'{content}{attachments}{more}'.encode()).hexdigest()[:8]}"
    frame = {"type": "send", "client_msg_id": name, "conversation_id": "c", "content": content}
    await socket.send(**frame | {"attachments": attachments} | more)
    return await socket.until("done")


async def test_a_message_names_as_many_images_as_any_door_shows(service: InProcessService) -> None:
    pictures = (png(more=chunk(b"pRIv", bytes([number]))) for number in range(MAX_IMAGES))
    named = [await uploaded_id(service, picture) for picture in pictures]
    async with service.socket(CLIENT) as socket:
        await send_and_wait(socket, "What are these?", *named)
        more = {"client_msg_id": "n", "content": "And this?", "attachments": [*named, "0" * 64]}
        assert (await socket.ask(type="send", **more))["code"] == "bad_frame"
    assert [len(request.messages[-1].images) for request in service.engine.requests] == [MAX_IMAGES]


async def test_a_model_that_takes_no_images_says_so_and_reads_a_word_where_others_were_shown(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, vision_engine()) as running, running.socket(CLIENT) as socket:
        await send_and_wait(socket, "Look!", png_id := await uploaded_id(running, PNG.data))
    blind = ScriptedEngine()
    async with serving(tmp_path, blind) as running, running.socket(CLIENT) as socket:
        refused = await socket.ask(
            type="send", client_msg_id="x", conversation_id="c", content="Look!", attachments=[png_id]
        )
        assert (refused["code"], refused["message"]) == ("bad_params", "This model does not take images.")
        await send_and_wait(socket, "And now?")
    assert blind.requests[0].messages[0].content == f"{NOT_SEEN}\nLook!"


async def test_what_is_too_much_to_be_shown_again_leaves_a_word(
    service: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "SHOWN_BYTES", 1)
    png_id, jpeg_id = await uploaded_id(service, PNG.data), await uploaded_id(service, JPEG.data)
    async with service.socket(CLIENT) as socket:
        await send_and_wait(socket, "One", png_id)
        await send_and_wait(socket, "Two", jpeg_id)
    first, _, last = service.engine.requests[-1].messages
    assert (first.content, first.images) == (f"{NOT_SEEN}\nOne", ())
    assert last.images == (JPEG.image,)


async def test_what_is_no_image_is_not_kept(service: InProcessService) -> None:
    for data, status, why in (
        (b"<svg/>", 400, "PNG, JPEG, WebP or GIF"),
        (png(9000, 1, points=b""), 400, "9000 by 1 pixels"),
        (bytes(MAX_BYTES + 1), 413, "too large"),
    ):
        answered = await upload(service, data)
        assert (answered.status_code, why in answered.text) == (status, True), answered.text


def large(number: int, size: int = MIB) -> bytes:
    """An image of this size that no other one is."""
    return png(more=chunk(b"pRIv", number.to_bytes(8) + bytes(size)))


async def test_an_owner_keeps_so_much_at_most_and_the_same_image_costs_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, vision_engine(), store_memory=32 * MIB) as running:
        first, *more = map(large, range(14))
        assert (await upload(running, first)).status_code == 200
        refused = [await upload(running, one) for one in more][-1]
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "store_full")
        assert "Retry-After" not in refused.headers, "no wait helps"
        assert (await upload(running, first)).status_code == 200
        assert (await upload(running, first, client_id="bob")).status_code == 200


async def test_images_leave_with_their_conversation_and_with_their_owner(service: InProcessService) -> None:
    png_id = await uploaded_id(service, PNG.data)
    store = service.service._sessions.images._client
    async with service.socket(CLIENT) as socket, httpx.AsyncClient(base_url=service.url) as client:
        await send_and_wait(socket, "Look!", png_id)
        lines = (await client.get("/v1/export", params=CLIENT)).text.splitlines()
        exported = [json.loads(line) for line in lines]
        [message] = [one for one in exported if one.get("images")]
        assert message["images"][0]["data"] == PNG.base64
        assert await store.pttl("ms:{anonymous/ann/c}:images") > 3600_000
        await socket.ask(type="delete", conversation_id="c")
        assert (await read(service, png_id)).status_code == 404
        assert [name async for name in store.scan_iter("*upload*")] == [], "nor is its upload there"
        await uploaded_id(service, JPEG.data)
        await client.delete("/v1/me", params=CLIENT)
    assert [name async for name in store.scan_iter("*upload*")] == []
    assert [name async for name in store.scan_iter("*:images")] == []


async def test_images_that_were_shown_before_count_as_those_that_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that come with the history of a text alone are in memory, too."""
    monkeypatch.setattr(shares, "IMAGE_BYTES", bounds.IMAGE_SLOT_BYTES)
    engine = vision_engine(by_hand=True)
    async with serving(tmp_path, engine) as running, running.socket(CLIENT) as socket:
        png_id = await uploaded_id(running, PNG.data)
        send = {"type": "send", "content": "Look!"}
        for place in ("c", "d"):
            await socket.send(**send, client_msg_id=place, conversation_id=place, attachments=[png_id])
            await socket.next("accepted")
            if place == "c":
                await socket.send(type="cancel", conversation_id="c")
                await socket.next("done")
        text = {"type": "send", "client_msg_id": "t", "conversation_id": "c", "content": "And now?"}
        refused = await socket.ask(**text)
        assert (refused["code"], "too many images" in refused["message"]) == ("overloaded", True)
        await socket.send(type="cancel", conversation_id="d")
        await socket.next("done")
        await socket.send(**text)
        assert (await socket.next("accepted"))["client_msg_id"] == "t"
        await socket.send(type="cancel", conversation_id="c")
        await socket.next("done")


async def test_a_browser_asks_again_before_it_shows_an_image_from_its_cache(
    service: InProcessService,
) -> None:
    """Its copy says nothing about whether the image was deleted since, or who is logged in now."""
    attachment = await uploaded_id(service, PNG.data)
    async with service.socket(CLIENT) as socket:
        await send_and_wait(socket, "Look.", attachment)
        first = await read(service, attachment)
        assert (first.status_code, first.headers["cache-control"]) == (200, "private, no-cache")
        known = {"If-None-Match": first.headers["etag"]}
        again = await read(service, attachment, headers=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        await socket.ask(type="delete", conversation_id="c")
        assert (await read(service, attachment, headers=known)).status_code == 404


async def test_what_waits_keeps_its_images_as_long_as_its_conversation(tmp_path: Path) -> None:
    engine = vision_engine(by_hand=True)
    async with serving(tmp_path, engine) as running, running.socket(CLIENT) as socket:
        png_id = await uploaded_id(running, PNG.data)
        await socket.send(type="send", client_msg_id="1", conversation_id="c", content="One")
        await socket.next("accepted")
        queued = {"type": "send", "client_msg_id": "2", "conversation_id": "c", "on_busy": "enqueue"}
        await socket.send(**queued, content="Two", attachments=[png_id])
        await socket.next("accepted")
        assert await running.service._sessions.images._client.pttl("ms:{anonymous/ann/c}:images") > 3600_000
        await socket.send(type="cancel", conversation_id="c")
        await socket.next("done")
        await socket.next("done")


async def test_images_of_a_message_that_was_refused_leave_with_their_owner(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, vision_engine(context_tokens=20)) as running,
        running.socket(CLIENT) as socket,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        store = running.service._sessions.images._client
        refused = await socket.ask(
            type="send",
            client_msg_id="1",
            conversation_id="c",
            content="Look! " * 100,
            attachments=[await uploaded_id(running, PNG.data)],
        )
        assert refused["code"] == "context_overflow"
        assert [name async for name in store.scan_iter("*:images")] == [b"ms:{anonymous/ann/c}:images"]
        assert (await client.delete("/v1/me", params=CLIENT)).status_code == 200
        assert [name async for name in store.scan_iter("*ann*")] == []


async def test_an_image_and_the_end_of_its_hash_are_one_write(service: InProcessService) -> None:
    """A process that dies between two transactions would leave it for good: so there is only one."""
    store = service.service._sessions.images._client
    await run_script(store, KEEP_IMAGE, ["ms:{x}"], [60, 0, "", "digest", b"image", 10])
    assert 0 < await store.ttl("ms:{x}") <= 60
    await run_script(store, KEEP_IMAGE, ["ms:{x}"], [600, 0, "", "other", b"image", 10])
    assert await store.ttl("ms:{x}") <= 60
    await run_script(store, KEEP_IMAGE, ["ms:{x}"], [600, 1, "", "third", b"image", 10])
    assert 60 < await store.ttl("ms:{x}") <= 600
