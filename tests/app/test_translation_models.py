"""A model that translates is asked like any other: by `send` with `params.target`, beside chat models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from engine.machine import EngineOptions
from engine.process.client import EngineClient
from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.engine import translator_folders

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    """A chat model, which is the default, and one that translates English to Chinese."""
    folder = translator_folders.marian(tmp_path_factory.mktemp("translators") / "marian")
    translator = EngineClient(EngineOptions(model=str(folder), device="cpu", dtype="float32", max_batch=4))
    chat = ServedModel(name="chat", engine=ScriptedEngine())
    models: Any = ServedModels([chat, ServedModel(name="en-zh", engine=translator)])
    async with serving(tmp_path_factory.mktemp("data"), models) as running:
        supervision = asyncio.create_task(translator.run())
        await translator.ready(timeout_s=100)
        yield running
        supervision.cancel()
        await asyncio.wait([supervision])


async def send_and_wait(socket: Socket, name: str, **params: Any) -> Frame:
    """The end of the reply to a message, or its refusal."""
    content = params.pop("content", "My name is Anna.")
    await socket.send(type="send", client_msg_id=name, conversation_id=name, content=content, params=params)
    text = ""
    while True:
        frame = await socket.next()
        text += frame.get("text", "") if frame["type"] == "delta" else ""
        if frame["type"] in {"done", "error"}:
            return frame | {"said": text}


async def test_a_message_is_translated_by_the_model_that_is_named(service: InProcessService) -> None:
    async with service.socket() as socket:
        end = await send_and_wait(socket, "one", model="en-zh", target="zh", max_new_tokens=8)
        again = await send_and_wait(socket, "two", model="en-zh", max_new_tokens=8)
    assert (end["type"], end["reason"], end["model"]) == ("done", "length", "en-zh")
    assert end["said"] == again["said"] != ""


@pytest.mark.parametrize(
    ("params", "field", "why"),
    [
        (
            {"model": "chat", "target": "zh"},
            "target",
            "This model does not translate: leave `target` and `source` out",
        ),
        ({"model": "en-zh", "target": "fr"}, "target", "The model has no target language 'fr'; it has zh."),
        ({"model": "en-zh", "source": "ja"}, "source", "The model has no source language 'ja'; it has en."),
        ({"model": "en-zh", "content": " 1 2" * 60}, "content", "The text to translate has"),
    ],
)
async def test_what_cannot_be_translated_is_refused_in_words(
    service: InProcessService, params: dict[str, Any], field: str, why: str
) -> None:
    async with service.socket() as socket:
        beside = asyncio.create_task(send_and_wait(socket, f"{field}-{len(params)}", **params))
        refused = await beside
        assert (refused["type"], refused["code"]) == ("error", "bad_params")
        assert refused["message"].startswith(why)
        assert (await send_and_wait(socket, f"{field}-{len(params)}-next", model="en-zh", max_new_tokens=2))[
            "type"
        ] == "done"


async def test_the_list_of_models_says_what_each_is(service: InProcessService) -> None:
    listed = json.loads((await service.get("/v1/models"))[2])["data"]
    known = {model["id"]: model.get("languages") for model in listed}
    assert known == {"chat": None, "en-zh": {"sources": ["en"], "targets": ["zh"], "source_tokens": 64}}
    async with service.socket() as socket:
        features = {model["name"]: model.get("features", ()) for model in socket.ready["models"]}
    assert features["en-zh"] == ["translate"]
    assert "translate" not in features["chat"]
