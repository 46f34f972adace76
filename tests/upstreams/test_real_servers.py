"""Real servers as upstreams: another process of this service and, in `make test-upstreams`, transformers' own server."""

from __future__ import annotations

import asyncio
import re
from itertools import count

import httpx
import pytest

from app.settings import DEMO_MODEL
from engine.messages import Finished, FinishReason, Message, Params, Request
from engine.upstream.engine import UpstreamEngine
from engine.upstream.options import UpstreamOptions
from tests.bench.servers import SERVE, running
from tests.engine.replies import outputs_of, reply_of, until_it_writes
from tests.server_process import ServerProcess

GREETING = "I am a small demo model"
_ids = count()


def question(text: str, most: int) -> Request:
    params = Params(max_new_tokens=most, do_sample=False)
    return Request(f"r{next(_ids)}", (Message("user", text),), params)


async def cancel_a_reply(engine: UpstreamEngine) -> None:
    """Cancel a long reply that has begun."""
    stream = engine.generate(question("Count from 1 to 300.", 1500))
    await until_it_writes(stream)
    stream.cancel()
    *_, end = await outputs_of(stream)
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED


async def test_another_midstream_replies_and_has_nothing_to_do_after_a_cancel(server: ServerProcess) -> None:
    options = UpstreamOptions("midstream", f"{server.url}/v1", "midstream-demo", context_tokens=2048)
    async with UpstreamEngine(options).running() as engine, httpx.AsyncClient(trust_env=False) as client:
        await engine.ready(180)
        text, end = await reply_of(engine.generate(question("Hello! How are you?", 24)))
        assert text.startswith(GREETING)
        assert end.generated_tokens == 17, "as it told"
        await cancel_a_reply(engine)
        async with asyncio.timeout(20):
            while True:
                metrics = (await client.get(f"{server.url}/metrics", timeout=30)).text
                if re.search(r"^midstream_turns_live 0(\.0)?$", metrics, re.MULTILINE):
                    break


@pytest.mark.peers
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(SERVE.missing()), reason="transformers serve needs the group bench")
async def test_transformers_serve_replies_before_and_after_a_cancel() -> None:
    checkpoint = str(DEMO_MODEL)
    with running(SERVE, model=checkpoint, device="cpu", dtype="float32") as url:
        options = UpstreamOptions("serve", f"{url}/v1", checkpoint, context_tokens=2048, health="../health")
        async with UpstreamEngine(options).running() as engine:
            await engine.ready(180)
            for _ in range(2):
                text, _ = await reply_of(engine.generate(question("Hello! How are you?", 24)))
                assert text.startswith(GREETING)
                await cancel_a_reply(engine)
