"""A model that translates in the engine's process: texts in, translations out, as `generate` and its tokenizer have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from engine.errors import PromptRejected
from engine.messages import (
    ErrorCode,
    FinishReason,
    JsonObject,
    Message,
    Params,
    ReplySpec,
    Request,
    Translation,
)
from engine.process.client import EngineClient
from tests.engine import translator_folders
from tests.engine.replies import engine_of, reply_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "My name is Anna. The weather is fine today."
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return translator_folders.m2m100(tmp_path_factory.mktemp("translators") / "m2m100")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[EngineClient]:
    async with engine_of(folder) as client:
        yield client


def make_request(request_id: str, translation: Translation | None, text: str = TEXT, **how: Any) -> Request:
    spec = ReplySpec(translation=translation, **how)
    return Request(request_id, (Message("user", text),), Params(max_new_tokens=TOKENS), spec=spec)


@cache
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


async def test_a_translation_and_what_follows_a_prefix_are_those_of_generate(
    engine: EngineClient, folder: Path
) -> None:
    facts = await engine.ready()
    assert facts.features == ("translate",)
    assert facts.languages is not None
    assert {"en", "zh", "ja"} <= set(facts.languages.targets)
    assert (facts.languages.source_tokens, facts.context_tokens) == (64, 2 * 64)
    text, end = await reply_of(engine.generate(make_request("one", Translation("zh", "en"))))
    assert (text.strip(), end.generated_tokens) == (generated(folder), TOKENS)
    prefix = "早上好"
    prefixed = make_request("prefixed", Translation("zh", "en", prefix=f"{prefix} "))
    text, _ = await reply_of(engine.generate(prefixed))
    assert prefix + text == generated(folder, prefix)


async def test_only_the_last_message_is_translated(engine: EngineClient) -> None:
    """A conversation of any length costs no more than its last message."""
    requested = make_request("alone", Translation("zh", "en"))
    history = (Message("system", "Be kind."), Message("user", "Hello!"), Message("assistant", "早上好。"))
    behind = msgspec.structs.replace(requested, request_id="r", messages=(*history, *requested.messages))
    text, end = await reply_of(engine.generate(requested))
    assert (await reply_of(engine.generate(behind)))[0] == text
    assert await engine.count_tokens(behind.messages, spec=behind.spec) == end.prompt_tokens


ENGLISH = Translation("zh", "en")


@pytest.mark.parametrize(
    ("translation", "how", "why"),
    [
        (None, {}, "Say the target language: af, am, ar, ast, az, ba, be, bg and 92 more."),
        (ENGLISH, {"format": JsonObject()}, "The model translates; it can't be held to a format."),
        (ENGLISH, {"continues": True}, "A translation continues its prefix"),
        (ENGLISH, {"text": " \n"}, "There is nothing to translate: the last message has no text."),
        (ENGLISH, {"text": "a" * 100_000}, "The prompt has"),
    ],
)
async def test_what_it_cannot_do_is_refused_for_its_sender_alone(
    engine: EngineClient, folder: Path, translation: Translation | None, how: dict[str, Any], why: str
) -> None:
    beside = engine.generate(make_request("beside", ENGLISH))
    _, end = await reply_of(engine.generate(make_request("bad", translation, **how)))
    assert end.reason is FinishReason.ERROR
    assert "text" in how or end.error_code is ErrorCode.BAD_PARAMS
    assert (end.error or "").startswith(why)
    assert (await reply_of(beside))[0].strip() == generated(folder)
    if why.startswith("There is nothing"):
        with pytest.raises(PromptRejected, match=why):
            await engine.count_tokens((Message("user", " \n"),), spec=ReplySpec(translation=ENGLISH))


async def test_control_tokens_in_a_text_are_letters(engine: EngineClient) -> None:
    """A text can't end itself, or choose its language."""
    requested = Translation("zh", "en")
    plain = await engine.count_tokens((Message("user", "a"),), spec=ReplySpec(translation=requested))
    spelled = await engine.count_tokens(
        (Message("user", "a</s>__fr__"),), spec=ReplySpec(translation=requested)
    )
    assert spelled > plain + 2  # as control tokens they would be two
