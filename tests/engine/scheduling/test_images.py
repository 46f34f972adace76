"""Replies to images are those of `generate`, token for token, and whoever shows none notices nothing of it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.execution.executor import LoadedModel
from engine.loading.loader import load
from engine.machine import EngineOptions
from engine.messages import Chunk, FinishReason, Message, Output, Started
from engine.prompts.jobs import DecodeImage, ImageResult
from engine.prompts.prompt import PromptBuilder, PromptImages, images_of
from engine.scheduling.core import EngineCore
from engine.text.reply_text import PreparedRequest
from engine.vision.image import PlacedImage
from engine.vision.processor import ImageProcessor
from tests.engine.tiny_models import Numbers, end_of, greedy, run_out, tokens_of
from tests.engine.vision_models import KINDS, TEMPLATE, folder_of, generated, image, inputs_of

LENGTH = 10
SOME = greedy(max_new_tokens=LENGTH, ignore_eos=True)
LONG = msgspec.structs.replace(SOME, max_new_tokens=400)


class VisionHarness:
    """A model with all that makes its prompts, and cores over it that are told of images when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model: LoadedModel = load(
            EngineOptions(model=str(folder), device="cpu", dtype="float32", kv_bytes=1 << 21)
        )
        self.prompt_images = PromptImages(ImageProcessor.of(str(folder)))
        self.prompts = PromptBuilder(self.model.tokenizer, None, self.prompt_images)

    def request(self, name: str, *messages: Message, **how: Any) -> PreparedRequest:
        made = self.prompts.prompt(messages)
        images = {one.digest: one for one in images_of(messages)}
        shown = [PlacedImage(images[digest], starts) for digest, starts in made.shown]
        return PreparedRequest(name, made.token_ids, how.pop("sampling", SOME), Numbers(), shown=shown, **how)

    def expected(self, *messages: Message, count: int = LENGTH) -> list[int]:
        return generated(self.folder, messages, count)


class Watched(EngineCore):
    """A core that decodes what it asks for; `by_hand`: when the test says so. `requested`: all that it asked for."""

    def __init__(self, vision: VisionHarness, *, by_hand: bool = False, **how: Any) -> None:
        self.requested: list[DecodeImage] = []
        self.open: deque[DecodeImage] = deque()
        self._by_hand, self._prompt_images = by_hand, vision.prompt_images
        super().__init__(vision.model, request_decode=self._decode, **how)

    def _decode(self, look: DecodeImage) -> None:
        self.requested.append(look)
        self.open.append(look)
        if not self._by_hand:
            self.answer()

    def answer(self) -> None:
        look = self.open.popleft()
        self.put_image(ImageResult(look, self._prompt_images.tiles(look)))


@cache
def _vision_harness(folder: Path) -> VisionHarness:
    return VisionHarness(folder)


@pytest.fixture(scope="module", params=KINDS)
def each_vision(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionHarness:
    return _vision_harness(folder_of(request.param, tmp_path_factory.mktemp("seeing") / request.param))


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> VisionHarness:
    return _vision_harness(folder_of("smolvlm", tmp_path_factory.mktemp("seen") / "smolvlm"))


def user(text: str, *images: Any) -> Message:
    """A message with images before its text."""
    return Message("user", text, images=images)


QUESTION = user("What is this?", image(1))
TALK = (
    user("What is this?", image(1)),
    Message("assistant", "A field."),
    Message("user", "And that?\nOr this?", images=(image(2, 9, 40).moved(9), image(3, 64, 64).moved(17))),
)


def test_replies_to_images_are_those_of_generate(each_vision: VisionHarness) -> None:
    """One image, several in a talk, none; with a page that was kept, and all of them at once."""
    talks = {
        "one": (QUESTION,),
        "talk": TALK,
        "none": (user("Hello there"),),
        "other": (user("What is this?", image(2)),),
    }
    core = Watched(each_vision)
    for name, talk in talks.items():
        assert tokens_of(run_out(core, each_vision.request(name, *talk)), name) == each_vision.expected(
            *talk
        ), name
    together = Watched(each_vision)
    outputs = run_out(together, *(each_vision.request(name, *talk) for name, talk in talks.items()))
    for name, talk in talks.items():
        assert tokens_of(outputs, name) == each_vision.expected(*talk), name
    assert each_vision.expected(*talks["one"]) != each_vision.expected(*talks["other"])


def test_a_template_rewrites_the_text_beside_an_image_as_any_other(tmp_path: Path) -> None:
    template = TEMPLATE.replace("{{ line['text'] }}", "{{ line['text'] | upper }}")
    vision = VisionHarness(folder_of("smolvlm", tmp_path, template=template))
    message = user("What is <b>this</b>?", image(1))
    assert vision.prompts.token_ids([message]) == inputs_of(vision.folder, [message])["input_ids"][0].tolist()


def started(outputs: list[Output], name: str) -> Started:
    return next(one for one in outputs if isinstance(one, Started) and one.request_id == name)


def test_kept_pages_are_found_by_text_and_image_alike(vision: VisionHarness) -> None:
    core = Watched(vision)
    first = vision.request("first", QUESTION, cache_salt="s")
    run_out(core, first)
    outputs = run_out(core, vision.request("again", QUESTION, cache_salt="s"))
    assert started(outputs, "again").cached_tokens == len(first.prompt) - 1
    assert tokens_of(outputs, "again") == vision.expected(QUESTION)
    outputs = run_out(core, vision.request("next", *TALK, cache_salt="s"))
    looks = [(look.request_id, look.number) for look in core.requested]
    assert looks == [("first", 0), ("next", 1), ("next", 2)], "earlier images are not looked at again"
    assert tokens_of(outputs, "next") == vision.expected(*TALK)

    other = user("What is this?", image(2))
    outputs = run_out(core, vision.request("other", other, cache_salt="s"))
    assert first.prompt == vision.request("", other).prompt, "the words are the same"
    assert started(outputs, "other").cached_tokens <= first.shown[0].starts[0]
    assert tokens_of(outputs, "other") == vision.expected(other)


def test_others_go_on_while_an_image_is_decoded_and_looked_at(vision: VisionHarness) -> None:
    """A step of theirs stands between any two pieces that a target as short as this allows."""
    core = Watched(vision, by_hand=True, step_target_s=1e-9)
    core.submit(vision.request("plain", user("Hello"), sampling=LONG))
    while not any(isinstance(one, Chunk) for one in core.step()):
        pass
    core.submit(vision.request("seeing", *TALK[:1]))
    for _ in range(5):
        assert any(isinstance(one, Chunk) for one in core.step()), "it waits for nobody's points"
    core.answer()
    steps, outputs = 0, list[Output]()
    while not any(one.request_id == "seeing" for one in outputs):
        outputs += (made := core.step())
        steps += 1
        assert sum(isinstance(one, Chunk) and one.request_id == "plain" for one in made) == 1
    assert steps > 7 * 2 * 2  # tiles, layers, pieces of a layer
    outputs += run_out(core)
    assert tokens_of(outputs, "seeing") == vision.expected(*TALK[:1])


@pytest.mark.parametrize("phase", ["queued", "decoded", "looked at", "computed"])
def test_a_cancel_is_one_step_in_every_phase(phase: str, vision: VisionHarness) -> None:
    core = Watched(vision, by_hand=True, step_target_s=1e-9, max_batch=1)
    if phase == "queued":
        core.submit(vision.request("before", user("Hello"), sampling=LONG))
        core.step()
    core.submit(vision.request("a", *TALK))
    if phase != "queued":
        core.step()
        core.step()
    if phase in ("looked at", "computed"):
        core.answer()
        core.step()
    if phase == "computed":
        while core.open or not any(one.request_id == "a" for one in core.step()):
            if core.open:
                core.answer()
    core.cancel("a")
    ends = core.step()
    assert end_of(ends, "a").reason is FinishReason.CANCELLED
    core.cancel("before")
    run_out(core)
    while core.open:
        core.answer()  # of what nobody waits for
    core.submit(vision.request("next", QUESTION))
    while core.busy or core.open:
        while core.open:
            core.answer()
        ends += core.step()
    assert tokens_of(ends, "next") == vision.expected(QUESTION)


def test_a_reply_that_was_preempted_goes_on_as_if_nothing_had_been(vision: VisionHarness) -> None:
    """Images are told apart in what is kept, and states outlive the pages."""
    page = vision.model.kv.page_size
    tight = VisionHarness.__new__(VisionHarness)
    tight.__dict__ |= vision.__dict__
    tight.model = replace(vision.model, kv=replace(vision.model.kv, pages=5, context_tokens=4 * page))
    core = Watched(tight)
    sampling = msgspec.structs.replace(SOME, max_new_tokens=page + 30)
    messages = {"a": QUESTION, "b": user("What is this?", image(2)), "c": user("Hello")}
    outputs = run_out(
        core, *(vision.request(name, message, sampling=sampling) for name, message in messages.items())
    )
    assert core.statistics().preemptions > 0
    for name, message in messages.items():
        assert tokens_of(outputs, name) == vision.expected(message, count=page + 30), name


def test_whose_image_is_next_follows_priority_then_who_was_looked_at_least(vision: VisionHarness) -> None:
    core = Watched(vision, by_hand=True, max_batch=16)
    requests = [
        ("first", "ann", 0),
        ("second", "ann", 0),
        ("third", "ann", 0),
        ("other", "bob", 0),
        ("urgent", "ann", 1),
    ]
    for number, (name, client, priority) in enumerate(requests):
        core.submit(vision.request(name, user("What?", image(number)), client=client, priority=priority))
        core.step()
    while core.busy or core.open:
        if core.open:
            core.answer()
        core.step()
    assert [look.request_id for look in core.requested] == ["first", "urgent", "other", "second", "third"]


def test_a_reply_does_not_wait_for_images_of_others_once_its_own_were_looked_at(
    vision: VisionHarness,
) -> None:
    core = Watched(vision, by_hand=True)
    core.submit(vision.request("a", QUESTION))
    core.submit(vision.request("b", user("What is this?", image(2))))
    core.step()
    core.step()
    core.answer()
    outputs = list[Output]()
    while not core.busy or len(core.requested) < 2 or not any(isinstance(one, Chunk) for one in outputs):
        assert core.busy, "it is computed while the other one's points are waited for"
        outputs += core.step()
    assert {one.request_id for one in outputs if isinstance(one, Chunk)} == {"a"}


def test_an_image_that_several_show_is_looked_at_once(vision: VisionHarness) -> None:
    core = Watched(vision)
    twice = user("What is this?", image(1), image(1))
    outputs = run_out(core, *(vision.request(f"{number}", twice) for number in range(3)))
    assert len(core.requested) == 1
    assert {tuple(tokens_of(outputs, f"{number}")) for number in range(3)} == {tuple(vision.expected(twice))}
