"""Formats in the engine's process: refused before anything is accepted, followed, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest
import pytest_asyncio
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.api import Streamer, spec_not_served
from engine.errors import PromptRejected
from engine.loading.loader import load
from engine.machine import EngineOptions
from engine.messages import (
    Chunk,
    ErrorCode,
    Finished,
    FinishReason,
    Format,
    JsonObject,
    JsonSchema,
    Message,
    Params,
    Regex,
    ReplySpec,
    Request,
    Tool,
)
from engine.process.client import EngineClient
from tests.coverage_tracing import coverage_enabled
from tests.engine.conftest import TEMPLATE
from tests.engine.constrained import CITIES, CITY
from tests.engine.process.test_process import HELLO

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_llama: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(EngineOptions(model=str(tiny_llama), device="cpu", dtype="float32", max_batch=9))
    with coverage_enabled():
        async with client.running():
            await client.ready(timeout_s=100)
            yield client


def make_request(request_id: str, spec: ReplySpec, *, tokens: int = 120, seed: int = 1) -> Request:
    how = Params(max_new_tokens=tokens, do_sample=True, temperature=1.0, seed=seed)
    return Request(request_id, HELLO, how, client=request_id, spec=spec)


async def read(stream: Streamer) -> tuple[str, Finished]:
    outputs = [output async for output in stream]
    end = outputs[-1]
    assert isinstance(end, Finished)
    return "".join(output.text for output in outputs if isinstance(output, Chunk)), end


def format_spec(reply_format: Format) -> ReplySpec:
    return ReplySpec(format=reply_format)


async def test_the_model_says_that_it_can_follow_formats(engine: EngineClient) -> None:
    assert engine.facts is not None
    assert "format" in engine.facts.features
    assert spec_not_served(format_spec(JsonObject()), engine.facts) is None


async def test_a_reply_follows_its_format(engine: EngineClient) -> None:
    requests = [make_request(f"r{n}", format_spec(CITIES), seed=n) for n in range(6)]
    for text, end in await asyncio.gather(*(read(engine.generate(request)) for request in requests)):
        assert end.reason is FinishReason.STOP
        jsonschema.validate(json.loads(text), json.loads(CITY))
    text, end = await read(engine.generate(make_request("regex", format_spec(Regex("[0-9]{4}-[0-9]{2}")))))
    assert (end.reason, len(text)) == (FinishReason.STOP, 7)


BAD = {
    "five megabytes": (JsonSchema(json.dumps({"description": "x" * 5_000_000})), "at most 256 KiB"),
    "no schema": (JsonSchema("nonsense"), "no valid JSON Schema"),
    "exponential": (
        JsonSchema(
            json.dumps(
                {
                    "allOf": [
                        {"anyOf": [{"properties": {f"p{n}_{m}": {"type": "string"}}} for m in range(4)]}
                        for n in range(8)
                    ]
                }
            )
        ),
        "too large",
    ),
    "itself": (JsonSchema('{"$ref":"#"}'), "allows nothing"),
    "costly": (JsonSchema('{"type":"integer","multipleOf":99991}'), "takes too much time or memory"),
    "a look ahead": (Regex("(?=x)y"), "look-around"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_format_that_cannot_be_followed_is_refused_with_its_count(
    engine: EngineClient, case: str
) -> None:
    reply_format, why = BAD[case]
    with pytest.raises(PromptRejected, match=why) as refused:
        await engine.count_tokens(HELLO, spec=format_spec(reply_format))
    assert refused.value.field == "format"
    _, end = await read(engine.generate(make_request("bad", format_spec(reply_format))))
    assert (end.reason, end.error_code) == (FinishReason.ERROR, ErrorCode.BAD_PARAMS)
    assert why in (end.error or "")


async def test_a_prompt_has_as_many_tokens_whatever_its_reply_is_held_to(engine: EngineClient) -> None:
    assert await engine.count_tokens(HELLO, spec=format_spec(CITIES)) == await engine.count_tokens(HELLO)


async def test_tools_that_are_not_to_be_called_are_no_reason(engine: EngineClient) -> None:
    text, end = await read(
        engine.generate(make_request("free", ReplySpec(tools=(Tool("t"),), tool_choice="none"), tokens=20))
    )
    assert end.reason is FinishReason.LENGTH
    assert text
    with pytest.raises(PromptRejected, match="can't be shown tools") as refused:
        await engine.count_tokens(HELLO, spec=ReplySpec(tools=(Tool("t"),), tool_choice="required"))
    assert refused.value.field == "tools"


async def test_nobody_notices_bad_formats_nor_good_ones(engine: EngineClient) -> None:
    async def bystanders(*others: Request) -> list[tuple[str, Finished]]:
        plain = [make_request(f"bystander {n}", ReplySpec(), tokens=60, seed=n) for n in range(4)]
        return await asyncio.gather(*(read(engine.generate(one)) for one in (*plain, *others)))

    quiet = await bystanders()
    bad = [
        make_request(f"bad {n}", format_spec(reply_format))
        for n, (reply_format, _) in enumerate(BAD.values())
    ]
    good = [make_request(f"good {n}", format_spec(CITIES), seed=n) for n in range(3)]
    disturbed = await bystanders(*bad, *good)
    assert [text for text, _ in disturbed[:4]] == [text for text, _ in quiet]
    assert all(end.reason is FinishReason.ERROR for _, end in disturbed[4 : 4 + len(bad)])
    assert all(end.reason is FinishReason.STOP for _, end in disturbed[-3:])
    assert engine.status.restarts == 0


async def test_a_guided_reply_is_cancelled_as_any_other(engine: EngineClient) -> None:
    stream = engine.generate(make_request("long", format_spec(Regex("[a-z]{3000}")), tokens=3000))
    async for output in stream:
        if isinstance(output, Chunk):
            stream.cancel()
            break
    _, end = await read(stream)
    assert end.reason is FinishReason.CANCELLED


@pytest.fixture(scope="module")
def without_bytes(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer knows words, not bytes."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path_factory.mktemp("odd") / "words"))
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "there": 2, "</s>": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="[UNK]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


async def test_a_tokenizer_without_bytes_leaves_formats_out_and_says_why(
    without_bytes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = load(EngineOptions(model=str(without_bytes), device="cpu", dtype="float32"))
    assert loaded.grammars is None
    assert loaded.facts().features == ()
    assert "can't be held to formats" in caplog.text


async def test_what_a_tokenizer_without_bytes_is_asked_all_the_same_is_refused(without_bytes: Path) -> None:
    options = EngineOptions(model=str(without_bytes), device="cpu", dtype="float32", max_batch=2)
    async with EngineClient(options).running() as engine:
        await engine.ready(timeout_s=100)
        with pytest.raises(PromptRejected, match="can't be held to a format") as refused:
            await engine.count_tokens((Message("user", "hello"),), spec=format_spec(JsonObject()))
        assert refused.value.field == "format"
        assert await engine.count_tokens((Message("user", "hello"),)) > 0
