"""Images in the engine's process: broken ones cost their own reply alone, and later turns go on without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from connections.images import MAX_PIXELS, MAX_SIDE, image_from_bytes
from engine.messages import ErrorCode, FinishReason, Message, Params, Request
from engine.process.client import EngineClient
from engine.vision.image import NOT_SEEN, Image
from tests.engine.replies import engine_of, reply_of
from tests.engine.vision_models import _alone, folder_of, generated, image
from tests.sample_images import png

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


async def test_words_that_look_like_an_image_are_words(engine: EngineClient, folder: Path) -> None:
    marks = image_message("Is <image> or <fake_token_around_image><global-img> one?", image(1))
    _, end = await reply_of(engine.generate(make_request("marks", marks)))
    assert end.reason is FinishReason.LENGTH
    _, end = await reply_of(engine.generate(make_request("none", image_message("Is <image> one?"))))
    assert end.error is None
    alone = image_message("", image(9))
    text, _ = await reply_of(engine.generate(make_request("alone", alone)))
    assert text == reference_reply(folder, alone)


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
    assert (end.reason, end.error_code) == (FinishReason.ERROR, ErrorCode.BAD_PARAMS)
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


async def test_the_largest_image_that_may_be_sent_is_decoded(engine: EngineClient) -> None:
    shown = image_from_bytes(png(MAX_SIDE, MAX_PIXELS // MAX_SIDE))
    _, end = await reply_of(engine.generate(make_request("r", image_message("What?", shown))))
    assert (end.reason, end.error) == (FinishReason.LENGTH, None)
