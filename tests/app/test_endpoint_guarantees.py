"""The promises of every endpoint that makes replies, tried at each: stops, history, keys, models, the end of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from app.keys import add_key
from connections.authentication.api_keys import parse_policy
from engine.messages import Message
from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from tests.app.endpoints import ENDPOINTS, Endpoint, Refused, open_reply
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import wait_for_requests

each_endpoint = pytest.mark.parametrize(
    "endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name.replace(" ", "-")
)


@each_endpoint
async def test_a_stop_is_one_step_and_the_history_is_what_was_sent(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    engine = ScriptedEngine(by_hand=True, reply="one two three four five")
    engine.hold_cancels = True
    async with serving(tmp_path, engine) as running:
        async with open_reply(running, endpoint) as reply:
            await wait_for_requests(running)
            engine.step(2)
            seen = await reply.text("two")
            if endpoint.stop is not None:
                await reply.stop()
                await until_cancelled(running)
        await until_cancelled(running)
        engine.step()  # the one that was under way
        assert (engine.statistics().cancels, engine.statistics().steps_after_cancel) == (1, 1)
        while running.service._sessions.statistics().turns:
            await running.get("/healthz")
        engine.step()
        assert (engine.statistics().steps, engine.statistics().running) == (4, 0)
        if not endpoint.stores_history:
            return
        async with open_reply(running, endpoint, "And now?"):
            await wait_for_requests(running, 2)
            history = [one for one in engine.requests[1].messages if one.role != "system"]
            assert history == [
                Message("user", "Hello?"),
                Message("assistant", seen),
                Message("user", "And now?"),
            ]
            engine.hold_cancels = False  # nobody waits for the last one


@each_endpoint
async def test_who_may_not_is_refused_in_the_doors_words(
    endpoint: Endpoint, keys: Path, tmp_path: Path
) -> None:
    small = ScriptedEngine(reply="small")
    models = ServedModels(
        [ServedModel(name="big", engine=ScriptedEngine()), ServedModel(name="small", engine=small)]
    )
    reads = add_key(keys, "reader", policy=parse_policy(["scopes=read|manage"]))
    of_small = add_key(keys, "small", policy=parse_policy(["models=small"]))
    async with serving(tmp_path, cast("ScriptedEngine", models), api_keys=str(keys)) as running:
        bad = await no_from(running, endpoint, key="msk_wrong")
        assert bad.status == (None if endpoint.sends_hello or endpoint.name == "ai sdk socket" else 401)
        assert bad.message == "The token is not valid."
        scope = await no_from(running, endpoint, key=reads, model="small")
        assert "it lacks the scope `chat`." in scope.message
        model = await no_from(running, endpoint, key=of_small, model="big")
        assert "may not use the model" in model.message
        for one in (scope, model):
            assert one.status in (403, None if endpoint.is_socket else 403)
        if endpoint.name != "ag-ui":  # its protocol ignores images that can't be shown, and names them
            shown = {"key": of_small, "model": "small"}
            image = await no_from(running, endpoint, content=endpoint.image_content, **shown)
            assert image.status == (None if endpoint.is_socket else 400)
            assert re.search("images|Only text|must be a string", image.message), image.message
        assert small.requests == []
        async with open_reply(running, endpoint, key=of_small, model="small") as reply:
            assert await reply.text("small")


@each_endpoint
async def test_a_service_that_is_about_to_stop_says_so_to_who_comes_and_lets_a_reply_end(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    engine = ScriptedEngine(by_hand=True, reply="one two three four five")
    async with (
        serving(tmp_path, engine, drain_timeout=30.0) as running,
        open_reply(running, endpoint) as reply,
    ):
        await wait_for_requests(running)
        engine.step(2)
        await reply.text("two")
        async with running.socket({"client_id": "idle"}) as idle:
            running.service.stop()
            await idle.closed()
        refused = await no_from(running, endpoint)
        assert (refused.status, "shutting down" in refused.message) == (503, True)
        engine.step(10)
        assert "five" in await reply.text("five")
        assert len(engine.requests) == 1


async def no_from(
    running: InProcessService, endpoint: Endpoint, content: Any = "Hello?", **options: str
) -> Refused:
    """An endpoint's refusal is a sentence."""
    with pytest.raises(Refused) as refused:
        async with open_reply(running, endpoint, content, **options) as reply:
            await reply.text("nothing")
    assert refused.value.message.endswith("."), refused.value.message
    return refused.value


async def until_cancelled(running: InProcessService) -> None:
    """Return once the engine knows that its reply is no longer wanted."""
    while not all(run.cancelled for run in running.engine._runs.values()):
        await running.get("/healthz")
