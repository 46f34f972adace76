"""A model that translates in the engine's process: texts in, translations out, as `generate` and its tokenizer have them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from engine.api import Streamer
from engine.errors import PromptRejected
from engine.machine import EngineOptions
from engine.messages import (
    Chunk,
    ErrorCode,
    Finished,
    FinishReason,
    JsonObject,
    Message,
    Output,
    Params,
    ReplySpec,
    Request,
    Translation,
)
from engine.process.client import EngineClient
from tests.engine import translator_folders

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "My name is Anna. The weather is fine today."
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return translator_folders.m2m100(tmp_path_factory.mktemp("translators") / "m2m100")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(EngineOptions(model=str(folder), device="cpu", dtype="float32", max_batch=4))
    supervision = asyncio.create_task(client.run())
    await client.ready(timeout_s=100)
    yield client
    supervision.cancel()
    await asyncio.wait([supervision])


def make_request(request_id: str, translation: Translation | None, text: str = TEXT, **how: Any) -> Request:
    spec = ReplySpec(translation=translation, **how)
    return Request(request_id, (Message("user", text),), Params(max_new_tokens=TOKENS), spec=spec)


async def outputs_of(stream: Streamer) -> list[Output]:
    return [output async for output in stream]


def text_of(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs if isinstance(output, Chunk))


def end_of(outputs: list[Output]) -> Finished:
    end = outputs[-1]
    assert isinstance(end, Finished)
    return end


def generated(folder: Path, prefix: str = "") -> str:
    """The whole translation from English to Chinese by transformers alone."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, src_lang="en", tgt_lang="zh")
    module: Any = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    started = [module.config.decoder_start_token_id, tokenizer.get_lang_id("zh")]
    if prefix:
        started += tokenizer(text_target=prefix, add_special_tokens=False)["input_ids"]
    tokens = module.generate(
        **tokenizer(TEXT, return_tensors="pt"),
        decoder_input_ids=torch.tensor([started]),
        max_new_tokens=TOKENS,
        do_sample=False,
        num_beams=1,
    )
    whole: str = tokenizer.decode(tokens[0, 2:], skip_special_tokens=True)
    return whole


async def test_a_translation_is_that_of_generate(engine: EngineClient, folder: Path) -> None:
    outputs = await outputs_of(engine.generate(make_request("one", Translation("zh", "en"))))
    assert text_of(outputs).strip() == generated(folder)
    assert end_of(outputs).generated_tokens == TOKENS


async def test_what_follows_a_prefix_is_that_of_generate(engine: EngineClient, folder: Path) -> None:
    prefix = "早上好"
    requested = Translation("zh", "en", prefix=f"{prefix} ")
    outputs = await outputs_of(engine.generate(make_request("prefixed", requested)))
    assert prefix + text_of(outputs) == generated(folder, prefix)


async def test_what_a_model_is_tells_its_languages(engine: EngineClient) -> None:
    facts = await engine.ready()
    assert facts.features == ("translate",)
    assert facts.languages is not None
    assert {"en", "zh", "ja"} <= set(facts.languages.targets)
    assert facts.languages.source_tokens == 64


async def test_only_the_last_message_is_translated(engine: EngineClient) -> None:
    """A conversation of any length costs no more than its last message."""
    requested = Translation("zh", "en")
    history = (
        Message("system", "Be kind."),
        Message("user", "Good morning!"),
        Message("assistant", "早上好。"),
    )
    alone = await outputs_of(engine.generate(make_request("alone", requested)))
    behind = Request(
        "behind",
        (*history, Message("user", TEXT)),
        Params(max_new_tokens=TOKENS),
        spec=ReplySpec(translation=requested),
    )
    assert text_of(await outputs_of(engine.generate(behind))) == text_of(alone)
    tokens = await engine.count_tokens(behind.messages, spec=behind.spec)
    assert tokens == end_of(alone).prompt_tokens


@pytest.mark.parametrize(
    ("translation", "how", "why"),
    [
        (None, {}, "Say the target language: af, am, ar, ast, az, ba, be, bg and 92 more."),
        (Translation("klingon"), {}, "The model has no target language 'klingon'; it has"),
        (Translation("zh", "xx"), {}, "The model has no source language 'xx'; it has"),
        (Translation("zh"), {"format": JsonObject()}, "The model translates; it can't be held to a format."),
        (Translation("zh"), {"continues": True}, "A translation continues its prefix"),
    ],
)
async def test_what_it_cannot_do_is_the_senders_fault(
    engine: EngineClient, translation: Translation | None, how: dict[str, Any], why: str
) -> None:
    outputs = await outputs_of(engine.generate(make_request("bad", translation, **how)))
    assert (end_of(outputs).reason, end_of(outputs).error_code) == (FinishReason.ERROR, ErrorCode.BAD_PARAMS)
    assert (end_of(outputs).error or "").startswith(why)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" \n", "There is nothing to translate: the last message has no text."),
        (" ".join([TEXT] * 3), "The text to translate has"),
        ("a" * 100_000, "The prompt has"),
    ],
)
async def test_a_text_that_cannot_be_read_is_refused_for_its_sender_alone(
    engine: EngineClient, folder: Path, text: str, why: str
) -> None:
    requested = Translation("zh", "en")
    beside = engine.generate(make_request("beside", requested))
    outputs = await outputs_of(engine.generate(make_request("bad", requested, text)))
    assert (end_of(outputs).error or "").startswith(why)
    assert text_of(await outputs_of(beside)).strip() == generated(folder)
    if why == "There is nothing to translate: the last message has no text.":
        with pytest.raises(PromptRejected, match=why):
            await engine.count_tokens((Message("user", text),), spec=ReplySpec(translation=requested))


async def test_control_tokens_in_a_text_are_letters(engine: EngineClient) -> None:
    """A text can't end itself, or choose its language."""
    requested = Translation("zh", "en")
    plain = await engine.count_tokens((Message("user", "a"),), spec=ReplySpec(translation=requested))
    spelled = await engine.count_tokens(
        (Message("user", "a</s>__fr__"),), spec=ReplySpec(translation=requested)
    )
    assert spelled > plain + 2  # as control tokens they would be two
