"""A model that takes images behind a real server: every endpoint gives the reply of `generate`."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from engine.messages import Message
from engine.vision.image import Image
from tests.app.in_process_service import Socket
from tests.app.test_images import IMAGE_REQUESTS
from tests.engine.vision_models import _alone, environ_of, folder_of, generated, image
from tests.sample_images import png
from tests.server_process import ServerProcess, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 8
LENGTHS = {"messages": "max_tokens", "responses": "max_output_tokens", "chat": "max_tokens"}
TEXTS: dict[str, Any] = {
    "chat": lambda reply: reply["choices"][0]["message"]["content"],
    "messages": lambda reply: "".join(block["text"] for block in reply["content"]),
    "responses": lambda reply: reply["output"][0]["content"][0]["text"],
}
QUESTION = "What is this?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("smolvlm", tmp_path_factory.mktemp("seeing") / "smolvlm", window=512)


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("server"), environ_of(folder)) as process:
        yield process


@asynccontextmanager
async def client_of(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


async def model_of(client: httpx.AsyncClient) -> dict[str, Any]:
    model: dict[str, Any] = (await client.get("/v1/models")).json()["data"][0]
    return model


def reference_reply(folder: Path, *messages: Message) -> str:
    """Return the greedy reply, up to its end token if it has one."""
    tokenizer, made = _alone(folder)[1], generated(folder, messages, TOKENS)
    end = made.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in made else len(made)
    text: str = tokenizer.decode(made[:end], skip_special_tokens=True)
    return text


def request_body(endpoint: str, model: str, *parts: str) -> dict[str, Any]:
    return IMAGE_REQUESTS[endpoint].request_body(*parts, model=model) | {
        LENGTHS[endpoint]: TOKENS,
        "temperature": 0,
    }


@pytest.mark.parametrize("endpoint", LENGTHS)
async def test_a_reply_to_an_image_is_that_of_generate(
    endpoint: str, server: ServerProcess, folder: Path
) -> None:
    shown = image(11)
    async with client_of(server) as client:
        model = await model_of(client)
        body = request_body(endpoint, model["id"], QUESTION, shown.url)
        answered = await client.post(IMAGE_REQUESTS[endpoint].path, json=body)
    assert model["architecture"]["input_modalities"] == ["text", "image"]
    assert answered.status_code == 200, answered.text
    expected = reference_reply(folder, Message("user", QUESTION, images=(shown.moved(len(QUESTION)),)))
    assert TEXTS[endpoint](answered.json()) == expected


@asynccontextmanager
async def socket_of(server: ServerProcess) -> AsyncIterator[Socket]:
    async with connect(server.ws_url, max_queue=None) as opened:
        socket = Socket(opened)
        await socket.send(type="hello", client_id="ann")
        socket.ready = await socket.next("ready")
        yield socket


async def upload(server: ServerProcess, shown: Image) -> str:
    async with client_of(server) as client:
        answered = await client.post("/v1/attachments", content=shown.data, params={"client_id": "ann"})
    return str(answered.json()["id"])


async def run_turn(
    socket: Socket, name: str, content: str, *attachments: str, place: str = "talk"
) -> tuple[str, dict[str, Any]]:
    """Return the text of a turn, and its end."""
    await socket.send(
        type="send",
        client_msg_id=name,
        conversation_id=place,
        content=content,
        attachments=attachments,
        params={"max_new_tokens": TOKENS, "do_sample": False},
    )
    frames = [await socket.next()]
    while frames[-1]["type"] not in ("done", "error"):
        frames.append(await socket.next())
    return "".join(one["text"] for one in frames if one["type"] == "delta"), frames[-1]


async def test_an_uploaded_image_is_seen_in_later_turns(server: ServerProcess, folder: Path) -> None:
    first, second = image(12), image(13, 50, 20, "JPEG")
    async with socket_of(server) as socket:
        assert "images" in socket.ready["models"][0]["features"]
        assert socket.ready["limits"]["max_images"] > 0
        text, done = await run_turn(socket, "1", QUESTION, await upload(server, first))
        assert text == reference_reply(folder, Message("user", QUESTION, images=(first,)))
        assert done["reason"] in ("stop", "length")
        _, done = await run_turn(socket, "2", "And this?", await upload(server, second))
    assert done["usage"]["cached_tokens"] > 16, "the first image is not looked at again"


async def test_broken_images_end_their_turns_alone(server: ServerProcess) -> None:
    """A decompression bomb, which is read only to its declared size, and a turn without images end well beside it."""
    broken = Image("", "image/png", 0, 0, data=png(40, 40, points=b"nothing that inflates"))
    bomb = Image("", "image/png", 0, 0, data=png(40, 40, points=zlib.compress(bytes(100_000_000), 9)))
    ids = [await upload(server, shown) for shown in (broken, bomb)]

    async def turn(name: str, *attachments: str) -> dict[str, Any]:
        async with socket_of(server) as socket:
            return (await run_turn(socket, name, "Look!", *attachments, place=name))[1]

    async def next_turn(name: str) -> dict[str, Any]:
        async with socket_of(server) as socket:
            return (await run_turn(socket, f"{name} again", "And now?", place=name))[1]

    bad, swollen, plain = await asyncio.gather(turn("bad", ids[0]), turn("bomb", ids[1]), turn("plain"))
    assert "The image can't be decoded" in json.dumps(bad), bad
    assert bad["reason"] == "error"
    assert {one["reason"] for one in (swollen, plain)} <= {"stop", "length"}
    later = await next_turn("bad")
    assert later.get("reason") in ("stop", "length"), later


async def test_a_stop_while_an_image_is_looked_at_is_a_stop(server: ServerProcess) -> None:
    shown = await upload(server, image(50, 300, 300))
    async with socket_of(server) as socket:
        await socket.send(
            type="send", client_msg_id="s", conversation_id="stop", content="Look!", attachments=[shown]
        )
        accepted = await socket.next("accepted")
        await socket.send(type="cancel", turn_id=accepted["turn_id"])
        done = await socket.next("done")
    assert done["reason"] == "cancelled"
    assert done["cancel"]["steps_after"] <= 1
