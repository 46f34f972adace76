"""Images through the endpoints whose clients send their own history: to a model that takes them, and to an upstream's."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from connections.images import MAX_IMAGES
from engine.messages import Message
from engine.scripted import FEATURES, ScriptedEngine
from engine.vision.image import NOT_SEEN
from sessions.limits import bounds, shares
from tests.app.ai_sdk_client import AiSdkChat, user
from tests.app.in_process_service import InProcessService, serving, serving_tables
from tests.app.openai_client import MODEL, client_of
from tests.jwt_signing import KEY
from tests.sample_images import JPEG, PNG, chunk, png


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """How an endpoint's client sends an image. `parts`: of one message; `body`: around its messages."""

    path: str
    messages: str
    body: dict[str, Any]
    text: str
    image: Any

    def request_body(self, *parts: Any, model: str = MODEL) -> dict[str, Any]:
        """Return a request whose one message has these parts: a text, or the URL of an image."""
        reported = [self.image(part) if ":" in part else {"type": self.text, "text": part} for part in parts]
        message = {"id": "1", "role": "user", "content": reported}
        return {"model": model, self.messages: [message], "forwardedProps": {"model": model}} | self.body


def _source(url: str) -> dict[str, Any]:
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    head, _, data = url.partition(",")
    source = {"type": "base64", "media_type": head[5:].partition(";")[0], "data": data}
    return {"type": "image", "source": source}


IMAGE_REQUESTS = {
    "chat": ImageRequest(
        path="/v1/chat/completions",
        messages="messages",
        body={},
        text="text",
        image=lambda url: {"type": "image_url", "image_url": {"url": url}},
    ),
    "messages": ImageRequest(
        path="/v1/messages", messages="messages", body={"max_tokens": 9}, text="text", image=_source
    ),
    "responses": ImageRequest(
        path="/v1/responses",
        messages="input",
        body={},
        text="input_text",
        image=lambda url: {"type": "input_image", "image_url": url},
    ),
    "ag-ui": ImageRequest(
        path="/v1/ag-ui",
        messages="messages",
        body={"threadId": "t", "runId": "r"},
        text="text",
        image=lambda url: {"type": "image", "source": {"type": "url", "value": url}},
    ),
}


def vision_engine() -> ScriptedEngine:
    return ScriptedEngine(features=(*FEATURES, "images"), reply="A square.")


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path, vision_engine()) as running:
        yield running


async def test_a_model_that_takes_images_is_shown_them_where_they_stand_and_not_too_many(
    service: InProcessService,
) -> None:
    for number, endpoint in enumerate(IMAGE_REQUESTS.values()):
        await assert_shown(service, endpoint, at=service)
        many = await service.request(
            "POST", endpoint.path, json=endpoint.request_body(*[PNG.url] * (MAX_IMAGES + 1))
        )
        assert (many.status_code, f"at most {MAX_IMAGES} images" in many.text) == (400, True)
        assert len(service.engine.requests) == number + 1


async def assert_shown(service: InProcessService, endpoint: ImageRequest, *, at: InProcessService) -> None:
    """Ask about two images `at` a service, whose model is `service`'s."""
    answered = await at.request(
        "POST", endpoint.path, json=endpoint.request_body("This", PNG.url, "or that", JPEG.url)
    )
    assert (answered.status_code, "square" in answered.text) == (200, True), answered.text
    images = (PNG.image.moved(4), JPEG.image.moved(12))
    assert service.engine.requests[-1].messages == (Message("user", "This\nor that", images=images),)


def as_response_body(body: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "input": body["input"]}


async def test_a_response_beside_the_store_is_shown_the_newest_images_as_others_are(
    service: InProcessService,
) -> None:
    """However many its conversation has: older or deleted ones are described in words."""
    async with client_of(service) as sdk:
        last: Any = openai.omit
        for count in (20, 20):
            body = IMAGE_REQUESTS["responses"].request_body("These", *[PNG.url] * count)
            last = (await sdk.responses.create(**as_response_body(body), previous_response_id=last)).id
        await sdk.responses.create(model=MODEL, input="Sure?", previous_response_id=last, store=False)
    first, _, second, *_ = service.engine.requests[-1].messages
    assert [len(one.images) for one in (first, second)] == [12, 20]
    assert first.content.count(NOT_SEEN) == 8
    assert all(image.data for one in (first, second) for image in one.images)


async def test_a_message_of_the_ai_sdk_keeps_as_many_images_as_any_door_takes(
    service: InProcessService,
) -> None:
    """It is sent, edited, and its reply made anew with all of them."""
    chat, message = AiSdkChat(service), user("What are these?")
    images = [png(more=chunk(b"pRIv", bytes([number]))) for number in range(MAX_IMAGES + 1)]
    urls = [f"data:image/png;base64,{b64encode(image).decode()}" for image in images]
    files = [{"type": "file", "mediaType": "image/png", "url": url} for url in urls]
    message["parts"] += files[:-1]
    for more in ({}, {"messageId": "m1"}, {"messageId": "m1", "trigger": "regenerate-message"}):
        async with chat.sent(message, **more) as answer:
            assert (await answer.rest())[-1]["type"] == "finish"
    assert [len(request.messages[-1].images) for request in service.engine.requests] == [MAX_IMAGES] * 3
    message["parts"].append(files[-1])
    async with chat.sent(message, messageId="m1") as answer:
        refused = (await answer.http.aread()).decode()
    assert (answer.http.status_code, f"more than {MAX_IMAGES} files" in refused) == (400, True), refused


async def test_models_say_whether_they_take_images(service: InProcessService, tmp_path: Path) -> None:
    async with service.socket() as socket, httpx.AsyncClient(base_url=service.url) as client:
        assert "images" in socket.ready["models"][0]["features"]
        assert socket.ready["limits"]["max_images"] == MAX_IMAGES
        model = (await client.get("/v1/models")).json()["data"][0]
        assert model["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
    async with serving(tmp_path / "blind") as blind, blind.socket() as socket:
        assert "images" not in socket.ready["models"][0]["features"]
        assert socket.ready["limits"]["max_images"] == 0


async def test_who_shows_too_much_at_once_is_refused_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "IMAGE_BYTES", 4 * bounds.IMAGE_SLOT_BYTES)
    engine = ScriptedEngine(features=(*FEATURES, "images"), by_hand=True)
    chat = IMAGE_REQUESTS["chat"]
    large = PNG.url.partition(",")[0] + "," + _large()
    async with serving(tmp_path, engine) as running, httpx.AsyncClient(base_url=running.url) as client:
        mine = {"Authorization": f"Bearer {KEY}"}
        body = chat.request_body(large) | {"stream": True}
        async with client.stream("POST", chat.path, json=body, headers=mine) as held:
            assert held.status_code == 200
            refused = await client.post(chat.path, json=chat.request_body(PNG.url), headers=mine)
            assert (refused.status_code, "too many images" in refused.text) == (503, True)
            async with client.stream(
                "POST", chat.path, json=chat.request_body("Hello!") | {"stream": True}, headers=mine
            ) as plain:
                assert plain.status_code == 200
    assert engine.requests[0].messages[0].images[0].data


def _large() -> str:
    return b64encode(png(more=chunk(b"pRIv", bytes(1_500_000)))).decode()


def chained_service(
    folder: Path, behind: InProcessService, *features: str
) -> AbstractAsyncContextManager[InProcessService]:
    """A Midstream whose upstream is another Midstream."""
    served = f'[[upstream]]\nname = "one"\nurl = "{behind.url}/v1"\nmodel = "{MODEL}"\nserver = "midstream"\n'
    (folder / "front").mkdir()
    tables = "\n".join([f"{served}context_tokens = 4096", "[upstream.features]", *features])
    return serving_tables(folder / "front", tables)


async def test_an_upstream_that_takes_images_is_sent_what_came(
    service: InProcessService, tmp_path: Path
) -> None:
    async with chained_service(tmp_path, service, "images = true") as front:
        for endpoint in IMAGE_REQUESTS.values():
            await assert_shown(service, endpoint, at=front)


async def test_an_upstream_that_is_not_said_to_take_images_is_sent_none(
    service: InProcessService, tmp_path: Path
) -> None:
    async with chained_service(tmp_path, service) as front:
        for endpoint in IMAGE_REQUESTS.values():
            answered = await front.request(
                "POST", endpoint.path, json=endpoint.request_body("Look!", PNG.url)
            )
            if endpoint.path == "/v1/ag-ui":  # its protocol ignores such parts, and names them
                assert answered.headers["X-Midstream-Ignored"] == "messages"
                continue
            assert answered.status_code == 400
            assert "This model does not take images." in answered.text
    assert [message.images for request in service.engine.requests for message in request.messages] == [()]
