"""Several models behind one engine's endpoint."""

from __future__ import annotations

import asyncio

import pytest

from engine.api import EngineState
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.messages import Message, Request
from engine.scripted import ScriptedEngine
from engine.served_models import InvalidModels, ServedModel, ServedModels, served_models

HELLO = (Message("user", "hello"),)


@pytest.fixture
async def big() -> ScriptedEngine:
    return ScriptedEngine(by_hand=True, context_tokens=200)


@pytest.fixture
async def small() -> ScriptedEngine:
    return ScriptedEngine(by_hand=True, context_tokens=60)


@pytest.fixture
async def models(big: ScriptedEngine, small: ScriptedEngine) -> ServedModels:
    return ServedModels(
        [
            ServedModel(name="big", engine=big, aliases=("best",), fallbacks=("small", "tiny")),
            ServedModel(name="small", engine=small),
            ServedModel(name="tiny", engine=small),
        ]
    )


async def test_a_request_goes_to_the_model_that_it_names(
    models: ServedModels, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    for name in ("", "big", "best", "small"):
        models.generate(Request(name, HELLO, model=name))
    assert [request.model for request in big.requests] == ["", "big", "best"]
    assert [request.model for request in small.requests] == ["small"]
    with pytest.raises(EngineUnavailable, match="huge"):
        models.generate(Request("huge", HELLO, model="huge"))


async def test_who_has_another_model_to_go_to_does_not_wait(
    models: ServedModels, big: ScriptedEngine
) -> None:
    big.die(revive=False)
    with pytest.raises(EngineUnavailable):
        models.generate(Request("1", HELLO, model="big", fallbacks=("small",)))
    models.generate(Request("2", HELLO, model="big"))
    assert [request.request_id for request in big.requests] == ["2"]


async def test_the_first_model_that_is_loaded_is_enough(models: ServedModels, big: ScriptedEngine) -> None:
    big.die(revive=False)
    assert models.status.state is EngineState.READY
    assert (await models.ready()).context_tokens == 60


async def test_where_no_model_will_be_served_the_defaults_reason_is_told(
    models: ServedModels, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    big._life.not_usable("It has no head.")
    small.fail("It crashed.")
    with pytest.raises(ModelNotUsable, match="no head"):
        await models.ready()


async def test_models_stand_in_in_their_order(models: ServedModels, small: ScriptedEngine) -> None:
    assert models.fallbacks_of("big") == ("small", "tiny")
    assert models.fallbacks_of("big", "small") == ("tiny",)
    assert models.fallbacks_of("big", "tiny") == models.fallbacks_of("small") == ()
    assert [model.name for model in models.serving(("small", "big"))] == ["small", "big"]
    small.die(revive=False)
    assert [model.name for model in models.serving(("small", "big"))] == ["big"]


async def test_a_model_that_fails_for_good_is_told_in_the_log(
    big: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class Over(ScriptedEngine):
        async def run(self) -> None:
            self.fail("It crashed too often.")

    models = ServedModels([ServedModel(name="big", engine=big), ServedModel(name="bad", engine=Over())])
    async with models.running():
        while not caplog.records:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0)
    assert "the model bad is not served: It crashed too often." in caplog.text


async def test_an_engine_without_a_name_serves_one_model(big: ScriptedEngine) -> None:
    alone = served_models(big)
    assert served_models(alone) is alone
    assert (alone.default.name, alone.find("big")) == ("", None)
    assert alone.parts == (big,)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"aliases": ("small",)}, "two models have the name 'small'"),
        ({"aliases": ("big",)}, "two models have the name 'big'"),
        ({"fallbacks": ("huge",)}, "is not a served model"),
        ({"fallbacks": ("big",)}, "as a fallback"),
        ({"fallbacks": ("small", "small")}, "as a fallback"),
    ],
)
async def test_names_that_mean_nothing_are_refused(
    big: ScriptedEngine, fields: dict[str, tuple[str, ...]], complaint: str
) -> None:
    with pytest.raises(InvalidModels, match=complaint):
        ServedModels([ServedModel(name="big", engine=big, **fields), ServedModel(name="small", engine=big)])
