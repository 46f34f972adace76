"""Images in the engine's process: a PNG in, the reply of `generate` out; broken or slow ones cost their own reply alone."""

from __future__ import annotations

import asyncio
import os
import signal
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from connections.images import MAX_PIXELS, MAX_SIDE, image_from_bytes
from engine.api import Streamer
from engine.messages import (
    Chunk,
    FinishReason,
    Message,
    Params,
    Queued,
    Request,
    Started,
)
from engine.process.client import EngineClient
from engine.vision.image import NOT_SEEN, Image
from tests.engine.replies import end_of, engine_of, outputs_of, reply_of, text_of
from tests.engine.vision_models import TILE, _alone, folder_of, generated, image, inputs_of
from tests.sample_images import chunk, png
from tests.server_process import child_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 12
WINDOW = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("smolvlm", tmp_path_factory.mktemp("seeing") / "smolvlm", window=WINDOW)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[EngineClient]:
    async with engine_of(folder) as client:
        yield client


def make_request(request_id: str, *messages: Message, **how: Any) -> Request:
    return Request(
        request_id, messages, Params(max_new_tokens=TOKENS, ignore_eos=True), cache_salt="s", **how
    )


def image_message(text: str, *images: Image) -> Message:
    return Message("user", text, images=images)


def reference_reply(folder: Path, *messages: Message) -> str:
    tokenizer = _alone(folder)[1]
    made: str = tokenizer.decode(generated(folder, messages, TOKENS), skip_special_tokens=True)
    return made


async def test_a_talk_about_images_is_as_generate_has_it(engine: EngineClient, folder: Path) -> None:
    """Each turn goes on from the pages of the one before, in which its images are."""
    assert "images" in (await engine.ready()).features
    talk = [image_message("What is this?", image(1, 40, 25, "JPEG"))]
    for number in range(3):
        outputs = await outputs_of(engine.generate(make_request(f"turn {number}", *talk)))
        assert end_of(outputs).reason is FinishReason.LENGTH
        assert text_of(outputs) == reference_reply(folder, *talk)
        started = next(one for one in outputs if isinstance(one, Started))
        assert started.prompt_tokens == inputs_of(folder, talk)["input_ids"].shape[1]
        assert await engine.count_tokens(talk) >= started.prompt_tokens
        assert bool(started.cached_tokens) == bool(number)
        more = (image(2).moved(5),) if number else ()
        talk += [Message("assistant", "A field."), Message("user", "More\nor less?", images=more)]


async def test_words_that_look_like_an_image_are_words(engine: EngineClient, folder: Path) -> None:
    marks = image_message("Is <image> or <fake_token_around_image><global-img> one?", image(1))
    _, end = await reply_of(engine.generate(make_request("marks", marks)))
    assert end.reason is FinishReason.LENGTH
    _, end = await reply_of(engine.generate(make_request("none", image_message("Is <image> one?"))))
    assert end.error is None
    alone = image_message("", image(9))
    text, _ = await reply_of(engine.generate(make_request("alone", alone)))
    assert text == reference_reply(folder, alone)


def swollen() -> Image:
    """A PNG of a small size whose points go on for ever."""
    return image_from_bytes(png(64, 64, points=zlib.compress(bytes(200_000_000), 9)))


def cut_off() -> Image:
    whole = image(3, 60, 60, "JPEG").data
    return image_from_bytes(whole[: len(whole) // 2])


def other_inside() -> Image:
    """Its header says 64 by 64, which was checked; the bytes that come are of another image."""
    return msgspec.structs.replace(image(4), width=64, height=64)


BROKEN = {
    "cut off": cut_off,
    "no points": lambda: image_from_bytes(png(64, 64, points=b"nothing that inflates")),
    "another inside": other_inside,
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_image_ends_its_own_reply_alone(kind: str, engine: EngineClient, folder: Path) -> None:
    (_, end), (good, _) = await asyncio.gather(
        reply_of(engine.generate(make_request(f"bad {kind}", image_message("What?", BROKEN[kind]())))),
        reply_of(engine.generate(make_request(f"good {kind}", image_message("What is this?", image(5))))),
    )
    assert end.reason is FinishReason.ERROR
    assert (end.error or "").startswith("The image can't be decoded: "), end
    assert good == reference_reply(folder, image_message("What is this?", image(5)))
    later = (
        image_message("What?", BROKEN[kind]()),
        Message("assistant", "A field."),
        image_message("And this?", image(5)),
    )
    unseen = (image_message(f"{NOT_SEEN}\nWhat?"), *later[1:])
    reported, _ = await reply_of(engine.generate(make_request(f"later {kind}", *later)))
    assert reported == reference_reply(folder, *unseen), "later turns go on without it"
    joined = image_message("What?\nAnd this?", BROKEN[kind](), image(5).moved(15))
    without = image_message(f"{NOT_SEEN}\nWhat?\nAnd this?", image(5).moved(15 + len(f"{NOT_SEEN}\n")))
    assert await engine.count_tokens([joined]) == await engine.count_tokens([without])


async def test_a_bomb_is_no_more_points_than_it_says(engine: EngineClient) -> None:
    """What inflates beyond its sizes is left where it is; the largest that may be sent is decoded."""
    for shown in (swollen(), image_from_bytes(png(MAX_SIDE, MAX_PIXELS // MAX_SIDE))):
        _, end = await reply_of(engine.generate(make_request("r", image_message("What?", shown))))
        assert (end.reason, end.error) == (FinishReason.LENGTH, None)


async def test_an_image_that_does_not_fit_is_refused_by_its_header_alone(engine: EngineClient) -> None:
    """Its bytes are never looked at: it has none here."""
    many = [msgspec.structs.replace(image(n, 8, 9), data=b"") for n in range(20)]
    assert await engine.count_tokens([image_message("What?", *many)]) > 20 * 7 * TILE > WINDOW
    bytes_too = [image(n, 8, 9) for n in range(20)]
    _, end = await reply_of(engine.generate(make_request("many", image_message("What?", *bytes_too))))
    assert (end.reason, end.prompt_tokens) == (FinishReason.ERROR, 0)
    assert "must fit into" in (end.error or "")


ENDLESS, WIDE = 40_000, 50_000
HEAVY_BYTES = 2_500_000
"""More than a socket holds."""
PATIENCE_S = 20.0


@pytest_asyncio.fixture(loop_scope="module")
async def wide(tmp_path: Path) -> AsyncIterator[EngineClient]:
    model = folder_of("smolvlm", tmp_path / "smolvlm", window=WIDE)
    async with engine_of(model, max_batch=2) as client:
        yield client


async def reason_of(stream: Streamer) -> FinishReason:
    async with asyncio.timeout(PATIENCE_S):
        return (await reply_of(stream))[1].reason


def heavy() -> Image:
    return image_from_bytes(png(30, 20, more=chunk(b"fiLl", bytes(HEAVY_BYTES))))


def request_of(name: str, *images: Image, tokens: int = 5) -> Request:
    how = Params(max_new_tokens=tokens, ignore_eos=True)
    return Request(name, (Message("user", "What is this?", images=images),), how)


async def read_chunks(stream: Streamer, chunks: int = 20) -> None:
    """Wait for the next pieces of a reply."""
    async with asyncio.timeout(PATIENCE_S):
        async for output in stream:
            chunks -= isinstance(output, Chunk)
            if chunks == 0:
                return
    pytest.fail("the reply ended")


async def until_queued(stream: Streamer) -> None:
    async for output in stream:
        if isinstance(output, Queued):
            return
    pytest.fail("it was never queued")


async def test_others_stream_and_are_heard_while_an_image_is_not_read(wide: EngineClient) -> None:
    plain, other = (wide.generate(request_of(name, tokens=ENDLESS)) for name in ("plain", "other"))
    await read_chunks(plain)
    await read_chunks(other)
    seeing = wide.generate(request_of("seeing", image(1)))
    await until_queued(seeing)

    assert wide.pid is not None
    stands = child_of(wide.pid, "engine.prompts")
    assert stands is not None
    os.kill(stands, signal.SIGSTOP)
    unread = wide.generate(request_of("unread", heavy()))
    await read_chunks(plain)
    other.cancel()
    unread.cancel()  # nobody waits for what is being written
    for stream in (other, unread):
        assert await reason_of(stream) is FinishReason.CANCELLED
    await read_chunks(plain)  # the step loop has asked for the points of the image that has a place now

    behind = wide.generate(request_of("behind"))
    await read_chunks(plain)
    plain.cancel()
    assert await reason_of(plain) is FinishReason.CANCELLED

    os.kill(stands, signal.SIGCONT)
    ends = [await reason_of(stream) for stream in (seeing, behind)]
    assert ends == [FinishReason.LENGTH] * 2
