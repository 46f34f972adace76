"""The default start: the bundled translator beside the demo model; its process runs only while it is needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

import midstream
from app.models import (
    TRANSLATOR_FACTS,
    TRANSLATOR_NAME,
    serves_translator,
    translator,
    with_names,
    with_translator,
)
from app.settings import Settings
from engine.api import EngineState
from engine.errors import EngineUnavailable
from engine.messages import Chunk, Message, ReplySpec, Request, Translation
from engine.process.client import EngineClient
from engine.process.supervision import HeartbeatOptions
from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from tests.app.in_process_service import InProcessService, serving
from tests.demo_translator.held_out import SENTENCES
from tests.sessions.chat_driver import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

AT_ONCE = 32
HELLO = Request(
    "hello",
    (Message("user", "My name is Robin."),),
    spec=ReplySpec(translation=Translation("zho_Hans", "eng_Latn")),
)
SETTINGS = Settings(dtype="float32")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineClient]:
    async with translator(SETTINGS).running() as engine:
        yield engine
    assert engine.status.state is EngineState.STOPPED
    with pytest.raises(EngineUnavailable):
        engine.generate(HELLO)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    engine: EngineClient, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InProcessService]:
    """A chat model and the translator, as in the default start."""
    models = ServedModels(
        [
            ServedModel(name="midstream-demo", engine=ScriptedEngine()),
            ServedModel(name=TRANSLATOR_NAME, engine=engine),
        ]
    )
    folder = tmp_path_factory.mktemp("data")
    limits = {
        "read_rate": 10_000.0,
        "store_durability": "memory",
    }  # hundreds of writes: not a test of the disk
    async with serving(folder, models, **limits) as running:  # type: ignore[arg-type]
        yield running


async def text_of(engine: EngineClient, request: Request) -> str:
    return "".join([output.text async for output in engine.generate(request) if isinstance(output, Chunk)])


@pytest.mark.parametrize(
    ("settings", "served"),
    [
        (Settings(), True),
        (Settings(model="/models/mine"), False),
        (Settings(upstream=("http://127.0.0.1:1/v1",)), False),
        (Settings(engine="vllm"), False),
    ],
)
async def test_it_stands_beside_the_bundled_model_alone(settings: Settings, served: bool) -> None:  # noqa: FBT001 - a case
    assert serves_translator(settings) is served


async def test_it_has_a_name() -> None:
    settings = Settings()
    models = with_names(settings, with_translator(settings, ScriptedEngine()))
    assert [model.name for model in models.models] == ["midstream-demo", TRANSLATOR_NAME]
    assert [model.chars_per_s for model in models.models] == [settings.default_pace, 0.0]
    assert (models.status.state, models.find(TRANSLATOR_NAME)) == (EngineState.READY, models.models[1])


async def test_asleep_it_is_no_process_and_keeps_nobody_from_waiting_for_the_default() -> None:
    chat, asleep = ScriptedEngine(), translator(SETTINGS)
    models = ServedModels(
        [ServedModel(name="chat", engine=chat), ServedModel(name=TRANSLATOR_NAME, engine=asleep)]
    )
    assert (asleep.status.state, asleep.status.state.is_up, asleep.pid) == (EngineState.ASLEEP, True, None)
    assert (models.facts, models.models[1].engine.facts) == (chat.facts, TRANSLATOR_FACTS)
    chat._life.loading("reading", 0.5)
    chat._life.not_usable("It has no head.")
    assert models.status.state is EngineState.ASLEEP
    with pytest.raises(Exception, match="head"):
        await models.ready()
    assert asleep.status.state is EngineState.ASLEEP


async def test_it_translates_out_of_the_box_for_who_names_no_model(
    service: InProcessService, engine: EngineClient
) -> None:
    async with midstream.connect(service.url, features=["interpret"]) as client:
        requested = {"source": "eng_Latn", "target": "zho_Hans"}
        reply = await client.send("My name is Robin.", params=requested, conversation_id="once")
        assert ((await reply.wait())["model"], reply.text) == (TRANSLATOR_NAME, "我叫Robin。")
        live = await client.interpret("zh", source="en", publish_policy="segment", conversation_id="live")
        await live.append("My name is Robin.")
        assert (await live.finish())["model"] == TRANSLATOR_NAME
        assert live.reply.text == "我叫Robin。"
        chat = await client.send("Hello?", conversation_id="once")
        assert (await chat.wait())["model"] == "midstream-demo"
    known = await engine.ready()
    assert msgspec.structs.replace(known, dtype=TRANSLATOR_FACTS.dtype) == TRANSLATOR_FACTS


async def test_many_interpretations_at_once_say_what_each_says_alone(service: InProcessService) -> None:
    sources = [
        " ".join(pair.english for pair in pairs[start : start + 2])
        for start in range(0, 12, 2)
        for pairs in SENTENCES.values()
    ][:AT_ONCE]
    async with midstream.connect(service.url, features=["interpret"]) as client:

        async def interpreted(source: str, name: str) -> str:
            live = await client.interpret("zh", source="en", publish_policy="segment", conversation_id=name)
            for word in source.split():
                await live.append(f"{word} ")
            await live.finish()
            return live.reply.text

        alone = [await interpreted(source, f"alone-{number}") for number, source in enumerate(sources)]
        together = await asyncio.gather(
            *(interpreted(source, f"together-{number}") for number, source in enumerate(sources))
        )
    assert list(together) == alone
    assert len(set(alone)) == AT_ONCE


async def test_who_is_not_asked_falls_asleep_and_wakes_again() -> None:
    engine = EngineClient(
        translator(SETTINGS)._options,
        heartbeat=HeartbeatOptions(interval_s=0.1),
        on_demand=TRANSLATOR_FACTS,
        idle_s=0.2,
    )
    async with engine.running():
        translated = await text_of(engine, HELLO)
        pid = engine.pid
        await eventually(lambda: engine.status.state is EngineState.ASLEEP)
        await eventually(lambda: engine.pid is None and not _lives(pid))
        assert engine.facts is not None
        assert await text_of(engine, HELLO) == translated == "我叫Robin。"
        assert engine.status.restarts == 0


def _lives(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return True
